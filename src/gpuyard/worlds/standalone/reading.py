"""How the manager's own log is read again: which snapshots and entries can be used, and what each of them does.

Place in the flow: store ─entries─▶ replay ◀─ **reading** (decode, judge, fold). Pure. Invariant: what comes out of a
log was judged as if it happened now, so that also a log of an older version gives a state that can be planned on.
"""

from __future__ import annotations

from typing import Final, get_args

import msgspec

from gpuyard.worlds.standalone.acceptable import event_problem
from gpuyard.worlds.standalone.events import DECODER, Event, JobSubmitted, NodeSeen, kind_of
from gpuyard.worlds.standalone.fold import fold
from gpuyard.worlds.standalone.records import State
from gpuyard.worlds.standalone.store.port import Entry
from gpuyard.worlds.standalone.store.replay import Reading, UnknownKindError, UnusableError

END_OF_TIME_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: no clock shows more."""
KNOWN_KINDS: Final = frozenset(str(event.__struct_config__.tag) for event in get_args(Event))

_STATE: Final[msgspec.msgpack.Decoder[State]] = msgspec.msgpack.Decoder(State)


def decode(entry: Entry) -> Event:
    """The event of an entry, if it can be entered and planned on."""
    if entry.kind not in KNOWN_KINDS:
        raise UnknownKindError(entry.kind)
    if not 0 <= entry.at_ms <= END_OF_TIME_MS:
        raise UnusableError(f"its time, {entry.at_ms} ms, is out of range")
    try:
        event = DECODER.decode(entry.body)
    except Exception as error:
        raise UnusableError(f"it cannot be read: {error}") from error
    if kind_of(event) != entry.kind:
        raise UnusableError(f"it holds an event of another kind, {kind_of(event)}")
    problem = event_problem(event)
    if problem:
        raise UnusableError(problem)
    return event


def why_unusable(entry: Entry) -> str:
    """What speaks against an entry before it is entered; an empty text where nothing does."""
    try:
        decode(entry)
    except UnusableError as error:
        return str(error)
    except UnknownKindError:
        return "this gpuyard does not know this kind of entry"
    return ""


def _state_problem(state: State) -> str:
    """Why a snapshot cannot be planned on: what no event could have brought there may not come from it either."""
    if not 0 <= state.at_ms <= END_OF_TIME_MS:
        return f"its time, {state.at_ms} ms, is out of range"
    for node in state.nodes.values():
        problem = event_problem(NodeSeen(node.name, node.facts, node.incarnation, node.boot_id, node.version))
        if problem:
            return f"node {node.name}: {problem}"
    for job in state.jobs.values():
        problem = event_problem(JobSubmitted(job))
        if problem:
            return f"job {job.id}: {problem}"
    return ""


def _skip(state: State, entry: Entry) -> None:
    state.seq = entry.seq


READING: Final = Reading[State, Event](
    empty=State,
    load=_STATE.decode,
    problem=_state_problem,
    save=msgspec.msgpack.encode,
    decode=decode,
    fold=lambda state, event, entry: fold(state, event, entry.seq, entry.at_ms),
    skip=_skip,
)
