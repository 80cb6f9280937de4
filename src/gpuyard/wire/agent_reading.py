"""The bytes of an agent as a message, whatever they are.

Place in the flow: agent ─bytes─▶ **agent_reading** ─message─▶ agent_limits. A message whose facts or attempts cannot be
read still counts for what can: it keeps the lease of the node, and says what was wrong (`unreadable`). Invariant: no
bytes raise an exception here.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec.structs import replace

from gpuyard.wire.agent_limits import cleaned_text
from gpuyard.wire.agents import PROTOCOL, AgentMessage, AttemptReport, Hello, MachineFacts, Report, decode_agent

Value = TypeVar("Value")

_NOT_DECODED: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, MemoryError)
"""What msgspec raises: the last four for text that is no UTF-8, deep nesting, and impossible numbers and lengths."""


class Unreadable(msgspec.Struct, frozen=True):
    """Bytes that are no message of an agent."""

    why: str


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
    facts: msgspec.Raw = msgspec.Raw(b"\xc0")


_LOOSE: Final[msgspec.msgpack.Decoder[_LooseHello | _LooseReport]] = msgspec.msgpack.Decoder(_LooseHello | _LooseReport)
_FACTS: Final[msgspec.msgpack.Decoder[MachineFacts | None]] = msgspec.msgpack.Decoder(MachineFacts | None)
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
    facts, why = _decoded(_FACTS, loose.facts)
    hello = Hello(loose.node, loose.incarnation, loose.boot_id, loose.version, facts or MachineFacts(), loose.protocol)
    return hello if facts else replace(hello, unreadable=why or "there are none")


def _report(loose: _LooseReport) -> Report:
    facts, why = _decoded(_FACTS, loose.facts)
    read = [_decoded(_ATTEMPT, raw) for raw in loose.attempts]
    attempts = tuple(attempt for attempt, _ in read if attempt is not None)
    lost = next((problem for attempt, problem in read if attempt is None), "")
    return Report(loose.sent_ms, attempts, facts, unreadable=why, unreadable_attempts=lost)


def _decoded(decoder: msgspec.msgpack.Decoder[Value], raw: msgspec.Raw) -> tuple[Value | None, str]:
    try:
        return decoder.decode(raw), ""
    except _NOT_DECODED as error:
        return None, _why(error)


def _why(error: BaseException) -> str:
    return cleaned_text(str(error)) or type(error).__name__
