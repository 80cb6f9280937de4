"""What the manager and its cluster do, in numbers, as Prometheus reads them.

Place in the flow: state, stats, traffic ─**metrics**─text─▶ Prometheus. Names of metrics are only ever added.
Invariant: no label holds the name of a job or a user.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from gpuyard.model.quantities import MILLI
from gpuyard.model.reasons import EVICTIONS
from gpuyard.service.port import ManagerPort
from gpuyard.service.schedule_views import SCHEDULE_STATES, schedule_state
from gpuyard.service.stats import AHEAD, BACK, LATENCY_BOUNDS_MS, Histogram
from gpuyard.service.traffic import Traffic
from gpuyard.service.views import lent_milli, node_state
from gpuyard.worlds.standalone.lifecycle import JobState
from gpuyard.worlds.standalone.records import SkipReason, State

METRICS_MEDIA: Final = "text/plain; version=0.0.4; charset=utf-8"
NODE_STATES: Final = ("ready", "unhealthy", "silent", "draining", "drained", "lost", "new")

Labels = tuple[tuple[str, str], ...]
Sample = tuple[Labels, float]


def metrics_text(manager: ManagerPort, traffic: Traffic, version: str) -> str:
    lines = (*_about(manager, version), *_queues(manager), *_jobs(manager), *_use(manager), *_machines(manager.state))
    return "\n".join((*lines, *_loop(manager), *_requests(traffic), ""))


def _about(manager: ManagerPort, version: str) -> Iterator[str]:
    yield from _gauge("gpuyard_build_info", "The version that runs.", [((("version", version),), 1)])
    started = manager.stats.started_at_ms / 1000
    yield from _gauge("gpuyard_start_time_seconds", "When the manager was started.", [((), started)])


# --------------------------------------------------------------------------------------------------------- the cluster


def _queues(manager: ManagerPort) -> Iterator[str]:
    """GPUs by queue of the tree, leaves and those above them."""
    standings = manager.standing()
    lent = lent_milli(manager.state, {one.name: one for one in standings})
    kinds: dict[str, tuple[str, list[Sample]]] = {
        "owed": ("GPUs a queue is owed; not there where it is owed all it asks for.", []),
        "limit": ("GPUs a queue may hold at most; not there where there is no bound.", []),
        "held": ("GPUs a queue holds.", []),
        "borrowed": ("GPUs a queue holds beyond what it is owed.", []),
        "lent": ("GPUs a team is owed and others hold.", []),
        "asked": ("GPUs its waiting jobs ask for.", []),
        "fair_share": ("GPUs that are its fair share now.", []),
    }
    for one in standings:
        borrowed = 0 if one.owed_milli is None else max(one.held_milli - one.owed_milli, 0)
        amounts = {
            "owed": one.owed_milli,
            "limit": one.limit_milli,
            "held": one.held_milli,
            "borrowed": borrowed,
            "lent": lent.get(one.name, 0) if one.name in manager.state.teams else None,
            "asked": one.asked_milli,
            "fair_share": one.fair_share_milli,
        }
        for kind, amount in amounts.items():
            if amount is not None:
                kinds[kind][1].append(((("queue", one.name),), amount / MILLI))
    for kind, (about, samples) in kinds.items():
        yield from _gauge(f"gpuyard_queue_{kind}_gpus", about, samples)


def _jobs(manager: ManagerPort) -> Iterator[str]:
    state = manager.state
    states = Counter(job.state for job in state.jobs.values())
    yield from _gauge(
        "gpuyard_jobs", "Jobs by state; those over for long are not counted.", _by("state", states, JobState)
    )
    why: Counter[str] = Counter()
    for job in state.jobs.values():
        if job.state is JobState.WAITING:
            reasons = manager.waiting_reasons(job.id)
            why[reasons[0].token if reasons else "Unplanned"] += 1
    about = "Jobs that wait, by the first thing in their way; Unplanned: no cycle has looked at them yet."
    yield from _gauge("gpuyard_jobs_pending", about, _by("reason", why, why))
    idle = sum(job.idle_since_ms is not None for job in state.jobs.values())
    kinds = Counter(schedule_state(schedule) for schedule in state.schedules.values())
    about = "Jobs that come again, by state; the manager has suspended those that need somebody."
    yield from _gauge("gpuyard_schedules", about, _by("state", kinds, SCHEDULE_STATES))
    yield from _gauge("gpuyard_jobs_idle", "Jobs that hold GPUs and do not use them.", [((), idle)])


def _use(manager: ManagerPort) -> Iterator[str]:
    """How much the GPUs of each team are used, as its machines measure it."""
    measured: dict[str, list[int]] = {}
    for (id, _), percent in manager.gpu_use().items():
        job = manager.state.jobs.get(id)
        if job is not None:
            measured.setdefault(job.team, []).append(percent)
    samples: list[Sample] = [
        ((("team", team),), sum(percents) / len(percents) / 100) for team, percents in sorted(measured.items())
    ]
    yield from _gauge("gpuyard_team_gpu_use_ratio", "Mean use of the GPUs its tasks hold, from 0 to 1.", samples)


def _machines(state: State) -> Iterator[str]:
    states = Counter(node_state(state, node) for node in state.nodes.values())
    yield from _gauge("gpuyard_nodes", "Machines by state.", _by("state", states, NODE_STATES))
    devices = [device for node in state.nodes.values() for device in node.facts.devices]
    healthy = Counter("healthy" if device.healthy else "unhealthy" for device in devices)
    yield from _gauge("gpuyard_devices", "GPUs by health.", _by("health", healthy, ("healthy", "unhealthy")))


def _by(label: str, counts: Counter[str] | Counter[JobState], names: Iterable[str]) -> list[Sample]:
    return [(((label, str(name)),), counts[name]) for name in names]  # type: ignore[index]


# --------------------------------------------------------------------------------------------------------- the manager


def _loop(manager: ManagerPort) -> Iterator[str]:
    stats = manager.stats
    yield from _histogram("gpuyard_cycle_seconds", "How long a cycle took.", [((), stats.cycle_times)])
    tokens = dict.fromkeys([*map(str, EVICTIONS), *stats.evictions])
    evictions: list[Sample] = [((("reason", token),), stats.evictions.get(token, 0)) for token in tokens]
    yield from _counter("gpuyard_evictions_total", "Tasks that had to give way, by reason.", evictions)
    skipped: list[Sample] = [((("reason", str(why)),), stats.skipped.get(why, 0)) for why in SkipReason]
    yield from _counter("gpuyard_schedule_skips_total", "Planned times without a run, by reason.", skipped)
    jumps: list[Sample] = [((("direction", one),), stats.clock_jumps.get(one, 0)) for one in (AHEAD, BACK)]
    yield from _counter("gpuyard_clock_jumps_total", "Jumps of the wall clock; nobody is charged for them.", jumps)
    yield from _histogram("gpuyard_journal_seconds", "From an event to its being durable.", [((), stats.journal_times)])
    waiting = float(stats.journal_waiting)
    yield from _gauge("gpuyard_journal_pending_entries", "Entries that are not durable yet.", [((), waiting)])
    yield from _counter("gpuyard_journal_entries_total", "Entries of the log.", [((), float(manager.state.seq))])
    issues = manager.issues()
    failures = float(issues.failures)
    yield from _counter("gpuyard_planning_failures_total", "Exceptions that ended a cycle.", [((), failures)])
    paused = float(issues.pause is not None)
    yield from _gauge("gpuyard_planning_paused", "1 while nothing can be planned.", [((), paused)])
    out: list[Sample] = [((("kind", kind),), float(count)) for kind, count in issues.counts().items()]
    yield from _gauge("gpuyard_left_out_of_planning", "What planning fails with, or is out of range.", out)
    yield from _gauge("gpuyard_agents_connected", "Agents whose stream is open.", [((), float(stats.agents))])


def _requests(traffic: Traffic) -> Iterator[str]:
    answered: list[Sample] = [
        ((("operation", name), ("code", str(status))), float(count))
        for (name, status), count in sorted(traffic.answered.items())
    ]
    yield from _counter("gpuyard_requests_total", "Requests that were answered.", answered)
    times = [((("operation", name),), times) for name, times in sorted(traffic.times.items())]
    yield from _histogram("gpuyard_request_seconds", "How long an answer took; for streams to their begin.", times)
    yield from _gauge("gpuyard_requests_in_flight", "Requests being answered.", [((), float(traffic.in_flight))])
    yield from _gauge("gpuyard_watchers", "Open streams of events and logs.", [((), float(traffic.watching))])


# -------------------------------------------------------------------------------------------------------------- format


def _gauge(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield from _metric(name, about, "gauge", samples)


def _counter(name: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield from _metric(name, about, "counter", samples)


def _metric(name: str, about: str, kind: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} {kind}"
    for labels, value in samples:
        yield f"{name}{_labels(labels)} {_number(value)}"


def _histogram(name: str, about: str, series: Iterable[tuple[Labels, Histogram]]) -> Iterator[str]:
    yield f"# HELP {name} {about}"
    yield f"# TYPE {name} histogram"
    for labels, histogram in series:
        below = 0
        for bound_ms, count in zip(LATENCY_BOUNDS_MS, histogram.counts, strict=False):
            below += count
            yield f"{name}_bucket{_labels((*labels, ('le', _number(bound_ms / 1000))))} {below}"
        yield f"{name}_bucket{_labels((*labels, ('le', '+Inf')))} {histogram.count}"
        yield f"{name}_sum{_labels(labels)} {_number(histogram.total_ms / 1000)}"
        yield f"{name}_count{_labels(labels)} {histogram.count}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    written = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{written}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
