"""What happened: events, the audit, and use."""

from __future__ import annotations

import re
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.service.authorise import seen_teams
from gpuyard.service.call import Answer, Call
from gpuyard.service.cursor import after, next_cursor
from gpuyard.service.happened import Reader
from gpuyard.service.limits import MAX_NAME_LENGTH, MAX_USAGE_ROWS
from gpuyard.service.moments import read_moment
from gpuyard.service.problems import ProblemReason
from gpuyard.service.slices import in_slices
from gpuyard.service.streams import SSE_MEDIA, check_last_event, last_words, watch
from gpuyard.service.usage import KEYS, usage_rows
from gpuyard.wire.access import Permission
from gpuyard.wire.rest import EventObject, Page
from gpuyard.worlds.standalone.meter import day_of
from gpuyard.worlds.standalone.retention import KEPT_MS

DAY_MS: Final = 24 * 3600 * 1000
DEFAULT_USAGE_MS: Final = 30 * DAY_MS
MAX_LOOKED_THROUGH: Final = 20
"""Pages of the log that one request reads at most to fill its own."""

_OBJECT: Final = re.compile(r"((job|array|node|team|user|token)|(schedule|data-job)/[^\s/]{1,253})/[^\s/]{1,253}")


async def list_events(call: Call) -> Answer:
    kinds = _kinds(call)
    reader = Reader(call, Permission.SEE_JOBS, _object(call), frozenset(kinds))
    if call.flag("watch"):
        check_last_event(call)
        release = call.service.traffic.open_stream(call.caller.token, call.caller.user)
        return Answer(
            stream=watch(call, reader), target=reader.follow, parting=last_words, media=SSE_MEDIA, release=release
        )
    return await _page(call, reader, kinds, "", None)


async def list_audit(call: Call) -> Answer:
    reader = Reader(call, Permission.READ_AUDIT, _object(call), frozenset())
    until_ms = read_moment(call.text("until"), call.manager.now_ms(), "until")
    return await _page(call, reader, (), _actor(call), until_ms)


def _kinds(call: Call) -> tuple[str, ...]:
    kinds = tuple(filter(None, (part.strip() for part in call.text("kind").split(","))))
    for kind in kinds:
        if kind not in KEPT_MS:
            fix = f"one of: {', '.join(sorted(KEPT_MS))}"
            raise RefusedError(ProblemReason.BAD_PARAMETER, f'"{kind[:40]}" is no kind of event', fix=fix, field="kind")
    return kinds


def _object(call: Call) -> str:
    object = call.text("object")
    if object and not (_OBJECT.fullmatch(object) and object.isprintable()):
        what, fix = (
            f'"{object[:80]}" names no object',
            "write job/17, node/a, team/vision, user/ann, token/x, schedule/vision/nightly or data-job/vision/train",
        )
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix=fix, field="object")
    return object


def _actor(call: Call) -> str:
    actor = call.text("actor")
    if not actor.isprintable() or len(actor) > MAX_NAME_LENGTH:
        what = "actor is too long, or not to be printed"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix="name a user, or node/NAME", field="actor")
    return actor


async def _page(call: Call, reader: Reader, kinds: tuple[str, ...], actor: str, until_ms: int | None) -> Answer:
    """Newest first. What may not be shown is skipped, so a page may take several looks at the log."""
    limit = call.limit
    begin = after(call, (int,))
    before = None if begin is None else int(begin[0])
    since_ms = read_moment(call.text("since"), call.manager.now_ms(), "since") or 0
    found: list[EventObject] = []
    for _ in range(MAX_LOOKED_THROUGH):
        async with call.service.traffic.searching.turn(call.caller.user):
            entries = await call.manager.history(
                object=call.text("object"),
                kinds=kinds,
                actor=actor,
                teams=reader.teams,
                since_ms=since_ms,
                until_ms=until_ms,
                before_seq=before,
                limit=limit,
            )
        told = await in_slices(entries, lambda entry: reader.told(entry) if reader.wants(entry) else None)
        for entry, seen in zip(entries, told, strict=True):
            before = entry.seq
            if seen is not None:
                found.append(seen)
            if len(found) == limit:
                return Answer(Page(tuple(found), next_cursor(call, (before,)), call.state.seq))
        if len(entries) < limit:
            return Answer(Page(tuple(found), None, call.state.seq))
    more = next_cursor(call, (before,)) if before is not None else None
    return Answer(Page(tuple(found), more, call.state.seq))


async def usage(call: Call) -> Answer:
    now_ms = call.manager.now_ms()
    since_ms = read_moment(call.text("since"), now_ms, "since")
    until_ms = read_moment(call.text("until"), now_ms, "until")
    since = day_of(now_ms - DEFAULT_USAGE_MS if since_ms is None else since_ms)
    until = day_of(now_ms if until_ms is None else until_ms)
    by = _by(call)
    teams = seen_teams(call)
    async with call.service.traffic.searching.turn(call.caller.user):
        found = await call.manager.sums(since, until)
    sums = [one for one in found if teams is None or one.team in teams]
    rows = await call.service.traffic.apart(call.caller.user, lambda: usage_rows(sums, by))
    if len(rows) > MAX_USAGE_ROWS:
        what = f"{len(rows)} rows are more than {MAX_USAGE_ROWS}"
        raise RefusedError(ProblemReason.BAD_PARAMETER, what, fix="ask for fewer days, or by fewer keys", field="by")
    return Answer(Page(tuple(rows), None, call.state.seq))


def _by(call: Call) -> tuple[str, ...]:
    by = tuple(dict.fromkeys(filter(None, (part.strip() for part in call.text("by").split(",")))))
    for key in by:
        if key not in KEYS:
            fix = f"one or more of: {', '.join(KEYS)}"
            raise RefusedError(ProblemReason.BAD_PARAMETER, f'use is not summed by "{key[:40]}"', fix=fix, field="by")
    return by or ("team",)


HANDLERS: Final = {"list_events": list_events, "list_audit": list_audit, "usage": usage}
