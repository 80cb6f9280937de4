"""Entries of the log as event objects, for one reader.

Place in the flow: store and subscription ─Entry─▶ **happened** ─EventObject─▶ lists and streams. Invariant: what a
reader may not see is left out before it is encoded, and two readers share bytes only if they may see the same.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import seen_teams
from gpuyard.service.call import Call
from gpuyard.service.moments import moment
from gpuyard.service.problems import ProblemReason
from gpuyard.service.redact import Veil
from gpuyard.service.sentences import sentence
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import EventObject
from gpuyard.worlds.standalone.events import DECODER, Event, JobSubmitted, ScheduleSet
from gpuyard.worlds.standalone.reading import END_OF_TIME_MS
from gpuyard.worlds.standalone.store.port import Entry

_WITH_SECRETS: Final = frozenset({"job-submitted", "schedule-set"})
"""Kinds of entries that hold a command and variables."""
MAX_LOST_NAMED: Final = 5


class Reader:
    """What one caller may see of what happened."""

    def __init__(self, call: Call, permission: Permission, object: str, kinds: frozenset[str]) -> None:
        self._permission = permission
        self._object = object
        self._kinds = kinds
        self._read_as(call)
        self._object_seen = self._knows_object() and self._sees_object()

    def _read_as(self, call: Call) -> None:
        self._call = call
        self._queues = call.state.queues
        self._teams = seen_teams(call, self._permission)
        self.veil = Veil(call.state, call.caller)

    def follow(self, call: Call) -> None:
        """Read on with the rights of this call; a RefusedError where something that was shown is out of sight now."""
        if call.caller != self._call.caller or call.state.queues is not self._queues:
            before = self._teams
            self._read_as(call)
            self._check_teams(before)
        if self._object_seen and self._knows_object() and not self._sees_object():
            what = f"your roles no longer let you see {self._object}"
            raise RefusedError(ProblemReason.NOT_FOUND, what, fix="gpuyard whoami shows what you may see")

    def _check_teams(self, before: frozenset[str] | None) -> None:
        now = self._teams
        if now is None or (before is not None and before <= now):
            return
        lost = sorted(before - now) if before is not None else []
        named = f": team {', '.join(lost[:MAX_LOST_NAMED])}" if lost else ""
        fix = "open the stream again for what you may see now"
        what = f"your roles no longer show all that this stream did{named}"
        raise RefusedError(ProblemReason.NOT_ALLOWED, what, fix=fix)

    def _knows_object(self) -> bool:
        """Whether what is asked about is one job that is not forgotten yet."""
        return self._object.startswith("job/") and self._object.removeprefix("job/") in self._call.state.jobs

    def _sees_object(self) -> bool:
        return self.veil.sees(self._object.removeprefix("job/"))

    @property
    def teams(self) -> tuple[str, ...] | None:
        return None if self._teams is None else tuple(sorted(self._teams))

    def wants(self, entry: Entry) -> bool:
        """Whether it is asked for, and for this reader. What is found only by a hidden job is not found."""
        if self._teams is not None and entry.team not in self._teams:
            return False
        if self._kinds and entry.kind not in self._kinds:
            return False
        return not self._object or self._object in self.veil.objects(entry.objects)

    def told(self, entry: Entry) -> EventObject | None:
        decoded = _decoded(entry)
        if decoded is None:
            return _unreadable(entry, self.veil.objects(entry.objects))
        event = self.veil.event(decoded)
        return None if event is None else _object(entry, event, self.veil.objects(entry.objects))

    def key(self, entry: Entry) -> tuple[object, ...]:
        """Equal for all readers who see an entry alike."""
        hidden = tuple(one for one in entry.objects if one.startswith("job/") and not self.veil.sees(one[4:]))
        if entry.kind not in _WITH_SECRETS:
            return (entry.seq, hidden)
        decoded = _decoded(entry)
        team, owner = _owned(decoded) if decoded is not None else ("", "")
        return (entry.seq, hidden, self._call.caller.may(Permission.SEE_SECRETS, team=team, owner=owner))


def _owned(event: Event) -> tuple[str, str]:
    """Whose secrets an event holds: the team's, and the user's."""
    match event:
        case JobSubmitted(job):
            return job.team, job.user
        case ScheduleSet():
            return event.submission.form.queue, event.submission.user
    return "", ""


def _decoded(entry: Entry) -> Event | None:
    """None where it cannot be read: the entry is in quarantine."""
    try:
        return DECODER.decode(entry.body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _unreadable(entry: Entry, objects: tuple[str, ...]) -> EventObject:
    """What is known of an entry whose content cannot be read; that content is not shown."""
    return EventObject(
        revision=entry.seq,
        at=moment(entry.at_ms if 0 <= entry.at_ms <= END_OF_TIME_MS else 0),
        kind=entry.kind,
        actor=entry.actor,
        team=entry.team,
        objects=objects,
        text="this entry cannot be read and is in quarantine: gpuyard store inspect",
        data=msgspec.Raw(b"{}"),
    )


def _object(entry: Entry, event: Event, objects: tuple[str, ...]) -> EventObject:
    return EventObject(
        revision=entry.seq,
        at=moment(entry.at_ms if 0 <= entry.at_ms <= END_OF_TIME_MS else 0),
        kind=entry.kind,
        actor=entry.actor,
        team=entry.team,
        objects=objects,
        text=sentence(event),
        data=msgspec.Raw(msgspec.json.encode(event)),
    )
