"""The bytes of an agent as a message, whatever they are.

Place in the flow: agent ─bytes─▶ **agent_reading** ─message─▶ agent_limits. A message whose facts or attempts cannot be
read still counts for what can: it keeps the lease of the node, and says what was wrong (`unreadable`). Invariant: no
bytes raise an exception here.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.wire.agent_limits import cleaned_text
from gpuyard.wire.agents import PROTOCOL, AgentMessage, AttemptReport, Hello, MachineFacts, Report, decode_agent

_NOT_DECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, MemoryError)
"""What msgspec raises: the last four for text that is no UTF-8, deep nesting, and impossible numbers and lengths."""


class Unreadable(msgspec.Struct, frozen=True):
    """Bytes that are no message of an agent."""

    why: str


_NONE: Final = msgspec.Raw(b"\xc0")
"""A value that is not there."""


class _LooseHello(msgspec.Struct, frozen=True, tag="hello"):
    node: str
    incarnation: str
    boot_id: str
    version: str
    facts: msgspec.Raw
    protocol: int = PROTOCOL


class _LooseReport(msgspec.Struct, frozen=True, tag="report"):
    sent_ms: int
    attempts: tuple[msgspec.Raw, ...] = ()
    facts: msgspec.Raw = _NONE


_LOOSE: Final[msgspec.msgpack.Decoder[_LooseHello | _LooseReport]] = msgspec.msgpack.Decoder(_LooseHello | _LooseReport)
_FACTS: Final[msgspec.msgpack.Decoder[MachineFacts]] = msgspec.msgpack.Decoder(MachineFacts)
_ATTEMPT: Final[msgspec.msgpack.Decoder[AttemptReport]] = msgspec.msgpack.Decoder(AttemptReport)


def read_message(data: bytes) -> AgentMessage | Unreadable:
    """Return the message in these bytes, or as much of it as can be read."""
    try:
        return decode_agent(data)
    except _NOT_DECODED as error:
        why = _why(error)
    try:
        loose = _LOOSE.decode(data)
    except _NOT_DECODED:
        return Unreadable(why)
    return _hello(loose) if isinstance(loose, _LooseHello) else _report(loose)


def _hello(loose: _LooseHello) -> Hello:
    facts, why = _facts(loose.facts)
    hello = Hello(loose.node, loose.incarnation, loose.boot_id, loose.version, facts or MachineFacts(), loose.protocol)
    return replace(hello, unreadable=why)


def _report(loose: _LooseReport) -> Report:
    facts, why = (None, "") if loose.facts == _NONE else _facts(loose.facts)
    read = [_attempt(raw) for raw in loose.attempts]
    attempts = tuple(one for one in read if isinstance(one, AttemptReport))
    lost = next((one for one in read if isinstance(one, str)), "")
    return Report(loose.sent_ms, attempts, facts, unreadable=why, unreadable_attempts=lost)


def _facts(raw: msgspec.Raw) -> tuple[MachineFacts | None, str]:
    try:
        return _FACTS.decode(raw), ""
    except _NOT_DECODED as error:
        return None, _why(error)


def _attempt(raw: msgspec.Raw) -> AttemptReport | str:
    """The attempt, or why it cannot be read."""
    try:
        return _ATTEMPT.decode(raw)
    except _NOT_DECODED as error:
        return _why(error)


def _why(error: BaseException) -> str:
    return cleaned_text(str(error)) or type(error).__name__
