"""How much was used, by whom, and on what terms: part of the fold, so that a replayed log gives the same sums.

A team that holds more than its quota borrows the rest; a team that holds less lends what others borrow, in proportion.
Of a job of a borrowing team, the same part is borrowed as of the team. What an attempt did since its last checkpoint is
wasted where it is stopped, lost or fails; each waste names the entry of the log that caused it. Of what a job holds,
that is idle which it holds from when it was seen not to use its GPUs until it was seen to use them again, or ended.
Amounts are GPU milli x milliseconds. Time is that of the monotonic clock: where the wall clock jumps, so does the
meter, and counts nothing for it. Invariant: per team and day, held = owed + borrowed, but for rounding.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from gpuyard.model.jobs import DeviceShare
from gpuyard.model.nodes import Device, mig_slice_milli
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.wire.agents import Ending
from gpuyard.worlds.standalone.events import AttemptEnded
from gpuyard.worlds.standalone.lifecycle import PLACED
from gpuyard.worlds.standalone.records import JobRecord, Meter, State, TaskRecord, TeamMeter

HELD: Final = "held"
OWED: Final = "owed"
BORROWED: Final = "borrowed"
LENT: Final = "lent"
WASTED: Final = "wasted"
IDLE: Final = "idle"
PPM: Final = 1_000_000
DAY_MS: Final = 86_400_000


def day_of(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d")


def run_on(state: State, at_ms: int) -> None:
    """Count what teams held since the last change. Each day gets its own: at midnight everything is counted."""
    meter = state.meter
    while meter.at_ms and (midnight_ms := (meter.at_ms // DAY_MS + 1) * DAY_MS) < at_ms:
        _run_to(state, midnight_ms)
        _count_everything(state)
    _run_to(state, at_ms)


def _run_to(state: State, at_ms: int) -> None:
    meter = state.meter
    elapsed = at_ms - meter.at_ms
    if not meter.at_ms or elapsed <= 0:
        meter.at_ms = max(meter.at_ms, at_ms)
        return
    meter.at_ms = at_ms
    owed = {queue.name: queue.share(GPU).quota for queue in state.queues if queue.name in state.teams}
    borrowed = {
        name: max(team.held_milli - (owed.get(name) or 0), 0) if owed.get(name, 0) is not None else 0
        for name, team in meter.teams.items()
    }
    for name, team in list(meter.teams.items()):
        if borrowed[name]:
            ratio = team.borrowed_ratio_ppm_ms + borrowed[name] * PPM * elapsed // team.held_milli
            meter.teams[name] = TeamMeter(team.held_milli, ratio)
    total = sum(borrowed.values())
    if total:
        _lend(state, owed, total, elapsed)


def _lend(state: State, owed: dict[str, int | None], borrowed: int, elapsed: int) -> None:
    held = {name: team.held_milli for name, team in state.meter.teams.items()}
    unused = {name: max((quota or 0) - held.get(name, 0), 0) for name, quota in owed.items()}
    free = sum(unused.values())
    for name, milli in unused.items():
        if milli:
            _add(state, state.meter.at_ms, (name, "", "", LENT, ""), min(milli, borrowed * milli // free) * elapsed)


def take(state: State, job: JobRecord, task: int, at_ms: int) -> None:
    """From now on a task holds its shares."""
    run_on(state, at_ms)
    state.meter.at_ms = max(state.meter.at_ms, at_ms)
    team = state.meter.teams.get(job.team) or TeamMeter()
    state.meter.teams[job.team] = TeamMeter(team.held_milli + milli_of(state, job, task), team.borrowed_ratio_ppm_ms)
    state.meter.marks[job.id, task] = (at_ms, team.borrowed_ratio_ppm_ms)


def give_back(state: State, job: JobRecord, event: AttemptEnded) -> None:
    """A task ended: its use is counted, and what of it was in vain."""
    run_on(state, state.at_ms)
    held = milli_of(state, job, event.task)
    _count(state, job, event.task)
    state.meter.marks.pop((job.id, event.task), None)
    team = state.meter.teams.get(job.team)
    if team is not None:
        state.meter.teams[job.team] = TeamMeter(team.held_milli - held, team.borrowed_ratio_ppm_ms)
    task = job.tasks[event.task]
    if event.done or not task.started_at_ms:
        return
    kept_from = max(task.started_at_ms, task.checkpoint_at_ms)
    lost_ms = max(min(state.at_ms, event.ended_at_ms or state.at_ms) - kept_from, 0)
    _add(state, state.at_ms, (job.team, job.user, job.id, WASTED, _cause(state, task, event)), held * lost_ms)


def count_job(state: State, job: JobRecord) -> None:
    """Bring the sums of one job up to now, before something about it changes that they depend on."""
    run_on(state, state.at_ms)
    for task in range(len(job.tasks)):
        if (job.id, task) in state.meter.marks:
            _count(state, job, task)


def _cause(state: State, task: TaskRecord, event: AttemptEnded) -> str:
    if task.stopping_since_ms and task.why is not None:
        return f"{task.decision}/{task.why.token}"
    return f"{state.seq}/{event.ending or Ending.EXITED}"


def _count(state: State, job: JobRecord, task: int) -> None:
    """Enter what a task has used since it was last counted."""
    meter = state.meter
    since_ms, ratio_then = meter.marks.get((job.id, task), (meter.at_ms, 0))
    team = meter.teams.get(job.team)
    if team is None or meter.at_ms <= since_ms:
        return
    held = milli_of(state, job, task)
    used = held * (meter.at_ms - since_ms)
    borrowed = min(held * (team.borrowed_ratio_ppm_ms - ratio_then) // PPM, used)
    who = (job.team, job.user, job.id)
    _add(state, meter.at_ms, (*who, HELD, ""), used)
    _add(state, meter.at_ms, (*who, OWED, ""), used - borrowed)
    _add(state, meter.at_ms, (*who, BORROWED, ""), borrowed)
    if job.idle_since_ms is not None:
        _add(state, meter.at_ms, (*who, IDLE, ""), held * (meter.at_ms - max(since_ms, job.idle_since_ms)))
    meter.marks[job.id, task] = (meter.at_ms, team.borrowed_ratio_ppm_ms)


def milli_of(state: State, job: JobRecord, task: int) -> int:
    """What a placed task counts, in thousandths of a GPU; a part of a GPU's memory counts as that part of it."""
    place = job.tasks[task].place
    if place is None:
        return 0
    node = state.nodes.get(place.node)
    devices = node.facts.devices if node else ()
    return sum(_share_milli(share, devices) for share in place.shares)


def _share_milli(share: DeviceShare, devices: tuple[Device, ...]) -> int:
    if share.gpu_milli or share.mig:
        return share.gpu_milli or mig_slice_milli(share.mig)
    total = devices[share.device].memory_mib if share.device < len(devices) else 0
    return -(-MILLI * share.memory_mib // total) if total else 0


def _add(state: State, at_ms: int, key: tuple[str, str, str, str, str], amount: int) -> None:
    if amount > 0:
        # Just before: what ends at midnight belongs to the day that ends.
        day = state.meter.open_days.setdefault(day_of(at_ms - 1), {})
        day[key] = day.get(key, 0) + amount


def counted_up_to(state: State, at_ms: int) -> Meter:
    """The sums as they would be at that moment; the state stays as it is."""
    scratch = copy.copy(state)
    scratch.meter = copy.deepcopy(state.meter)
    count_all(scratch, at_ms)
    return scratch.meter


def count_all(state: State, at_ms: int) -> None:
    """Bring the sums of everything that runs up to now."""
    run_on(state, at_ms)
    _count_everything(state)


def _count_everything(state: State) -> None:
    for id, task in list(state.meter.marks):
        job = state.jobs.get(id)
        if job is not None and job.tasks[task].phase in PLACED:
            _count(state, job, task)


def close_day(state: State, day: str) -> None:
    """The day's sums are kept elsewhere from here on."""
    count_all(state, state.at_ms)
    meter = state.meter
    meter.open_days.pop(day, None)
    meter.closed_until = max(meter.closed_until, day)
    meter.closing = tuple(one for one in meter.closing if one != day)


def take_back(state: State, day: str, kept: Iterable[tuple[str, str, str, str, str, int]]) -> None:
    """What is kept of a day is open again: from now on its open sums are complete."""
    there = state.meter.open_days.setdefault(day, {})
    for team, user, job, kind, cause, amount in kept:
        there[team, user, job, kind, cause] = there.get((team, user, job, kind, cause), 0) + amount
    state.meter.closing = (*state.meter.closing, day)


def jump(state: State, at_ms: int, by_ms: int) -> None:
    """Count up to the jump by the old clock, and go on from it by the new one."""
    count_all(state, at_ms - by_ms)
    meter = state.meter
    shift_ms = at_ms - meter.at_ms
    meter.marks = {task: (since_ms + shift_ms, ratio) for task, (since_ms, ratio) in meter.marks.items()}
    meter.at_ms = at_ms
    _bring_back_days(meter, at_ms, by_ms)


def _bring_back_days(meter: Meter, at_ms: int, by_ms: int) -> None:
    """Use that was booked on days which are yet to come was booked by a clock that was wrong."""
    today = day_of(at_ms)
    for day in sorted(one for one in meter.open_days if one > today and one not in meter.closing):
        there = meter.open_days.setdefault(min(_day_moved(day, by_ms), today), {})
        for key, amount in meter.open_days.pop(day).items():
            there[key] = there.get(key, 0) + amount


def _day_moved(day: str, by_ms: int) -> str:
    begin_ms = round(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()) * 1000
    return day_of(begin_ms + by_ms)
