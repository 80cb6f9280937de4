"""Values at and beyond the limits, through every boundary: they are refused by name, or can be planned on."""

from __future__ import annotations

import contextlib
import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpuyard.errors import InputError, NotRecordedError, QueueTreeError
from gpuyard.files.cluster import build_cluster
from gpuyard.files.format import ClusterFileSpec
from gpuyard.files.place import Place
from gpuyard.files.shape import shaped
from gpuyard.files.tree import parse
from gpuyard.loop.loop import Loop
from gpuyard.model.job_limits import MAX_GPUS_PER_TASK, MAX_WEIGHT
from gpuyard.model.jobs import Preference, Request, SoftNeighbour, Spread, Where
from gpuyard.model.limits import (
    MAX_AMOUNT,
    MAX_DEVICE_MEMORY_MIB,
    MAX_DURATION_MS,
    MAX_NODE_CPU_MILLI,
    MAX_NODE_MEMORY_BYTES,
    MAX_NUMBER,
    MAX_OTHER_AMOUNT,
    MAX_PRIORITY,
    MAX_TIME_MS,
)
from gpuyard.model.nodes import MAX_DEVICES_PER_NODE, Device
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.policies.policy import NodePlacement, Policy
from gpuyard.scheduler.cycle import plan
from gpuyard.scheduler.ledger import Ledger
from gpuyard.scheduler.verify import verify_on
from gpuyard.wire.agents import MachineFacts
from gpuyard.worlds.standalone.acceptable import event_problem
from gpuyard.worlds.standalone.events import Event, JobSubmitted, NodeSeen, TeamsSet
from gpuyard.worlds.standalone.records import TeamRecord
from gpuyard.worlds.standalone.snapshot import snapshot_of
from gpuyard.worlds.standalone.world import Standalone
from tests.worlds.standalone.yard import Yard, a_form

EDGES: Final = (
    MAX_DEVICES_PER_NODE,
    1000,
    MAX_GPUS_PER_TASK,
    MAX_WEIGHT,
    MAX_DEVICE_MEMORY_MIB,
    MAX_NODE_CPU_MILLI,
    MAX_NUMBER,
    MAX_PRIORITY,
    MAX_OTHER_AMOUNT,
    MAX_NODE_MEMORY_BYTES,
    MAX_DURATION_MS,
    MAX_TIME_MS,
    MAX_AMOUNT,
    (1 << 31) - 1,
    (1 << 53) - 1,
    (1 << 62) - 1,
    (1 << 63) - 1,
    (1 << 64) - 1,
    1 << 100,
)


@st.composite
def near(draw: st.DrawFn, limit: int) -> int:
    """In range, and mostly at its ends; now and then anything at all."""
    if draw(st.integers(0, 29)) == 29:
        edge = draw(st.sampled_from((*EDGES, limit + 1)))
        return -edge if draw(st.booleans()) else edge
    return draw(st.sampled_from((0, 1, 2, limit // 2, limit - 1, limit)))


@st.composite
def facts(draw: st.DrawFn) -> MachineFacts:
    count = draw(st.sampled_from((*(0, 1, 2, 8, MAX_DEVICES_PER_NODE) * 4, MAX_DEVICES_PER_NODE + 1, 64)))
    device = Device(
        memory_mib=draw(near(MAX_DEVICE_MEMORY_MIB)), nvlink=draw(near(MAX_NUMBER)), numa=draw(near(MAX_NUMBER))
    )
    return MachineFacts((device,) * count, draw(near(MAX_NODE_CPU_MILLI)), draw(near(MAX_NODE_MEMORY_BYTES)))


@st.composite
def wheres(draw: st.DrawFn) -> Where:
    level = "hostname"
    return Where(
        spreads=(Spread(level, 1 + draw(near(MAX_NUMBER - 1)), min_domains=draw(near(MAX_NUMBER))),)
        if draw(st.booleans())
        else (),
        preferences=(Preference(draw(near(MAX_WEIGHT)), ()),) * draw(st.integers(0, 3)),
        soft_neighbours=(SoftNeighbour(draw(near(MAX_WEIGHT)), level, ()),) * draw(st.integers(0, 2)),
    )


@st.composite
def requests(draw: st.DrawFn) -> Request:
    kind = draw(st.sampled_from(("whole", "share", "memory", "none")))
    return Request(
        devices=draw(near(MAX_GPUS_PER_TASK)) if kind != "none" else 0,
        gpu_milli=draw(st.integers(1, 999)) if kind == "share" else 0 if kind == "memory" else 1000,
        gpu_memory_mib=draw(near(MAX_DEVICE_MEMORY_MIB)) if kind == "memory" else 0,
        cpu_milli=draw(near(MAX_NODE_CPU_MILLI)),
        memory_bytes=draw(near(MAX_NODE_MEMORY_BYTES)),
        other=(("x", draw(near(MAX_OTHER_AMOUNT))),) if draw(st.booleans()) else (),
        where=draw(wheres()),
    )


@st.composite
def submissions(draw: st.DrawFn, yard: Yard, number: int) -> Event:
    form = a_form(tasks=draw(st.integers(1, 3)), least=draw(st.integers(0, 1)))
    request = draw(requests())
    form = replace(
        form,
        id=str(number),
        tasks=tuple(replace(task, id=f"{number}/{index}", request=request) for index, task in enumerate(form.tasks)),
        priority=draw(near(MAX_PRIORITY)),
        run_limit_ms=draw(st.none() | near(MAX_DURATION_MS)),
        estimate_ms=draw(st.none() | near(MAX_DURATION_MS)),
        restart_ms=draw(near(MAX_DURATION_MS)),
        preemption_delay_ms=draw(near(MAX_DURATION_MS)),
        submitted_at_ms=draw(near(MAX_TIME_MS)),
    )
    yard.submit()
    known = yard.job(str(yard.state.next_job - 1))
    return JobSubmitted(replace(known, id=str(number), form=form, tasks=known.tasks[:1] * len(form.tasks)))


@st.composite
def trees(draw: st.DrawFn) -> Event:
    bounds, durations = st.none() | near(MAX_AMOUNT), st.none() | near(MAX_DURATION_MS)
    queues = tuple(
        Queue(
            name,
            shares=(QueueShare("gpu", draw(bounds), draw(bounds), draw(near(MAX_AMOUNT))),),
            priority=draw(near(MAX_PRIORITY)),
            reclaim_min_runtime_ms=draw(durations),
            preempt_min_runtime_ms=draw(durations),
        )
        for name in ("vision", "speech")
    )
    return TeamsSet(queues, {"vision": TeamRecord(1), "speech": TeamRecord(2)})


def planned(yard: Yard, placement: NodePlacement) -> None:
    """Plan on the state, and carry it out: whatever raises is a fault of a boundary."""
    snapshot = snapshot_of(yard.state, yard.now_ms)
    ledger, policy = Ledger.of(snapshot), Policy(node_placement=placement)
    verify_on(plan(ledger, policy), ledger)
    loop = Loop(Standalone(yard.journal, lambda: yard.now_ms), policy)
    loop.cycle()
    loop.cycle()
    trace = [pause.fault.trace for pause in [loop.containment.pause] if pause is not None]
    assert (trace, loop.containment.failures, list(loop.containment.left)) == ([], 0, [])
    assert msgspec.msgpack.encode(yard.state)


@pytest.mark.slow
@given(st.data(), st.sampled_from(list(NodePlacement)))
def test_whatever_is_recorded_can_be_planned_on(data: st.DataObject, placement: NodePlacement) -> None:
    yard = Yard()
    for number in range(900, 903):
        events = (
            NodeSeen(data.draw(st.sampled_from(("a", "b"))), data.draw(facts()), "first", "boot-1", "0"),
            data.draw(submissions(yard, number)),
            data.draw(trees()),
        )
        for event in events:
            with contextlib.suppress(NotRecordedError) if event_problem(event) else contextlib.nullcontext():
                yard.enter(event)
        planned(yard, placement)


def text_of(number: int) -> Any:
    return number if abs(number) < 10**18 else str(number)


def wild(limit: int) -> st.SearchStrategy[Any]:
    return near(limit).map(text_of)


@pytest.mark.slow
@given(st.data())
def test_whatever_a_cluster_file_says_is_refused_by_name_or_can_be_planned_on(data: st.DataObject) -> None:
    node = {
        "name": "n-[1-3]",
        "gpus": data.draw(wild(64)),
        "memory": data.draw(wild(MAX_DEVICE_MEMORY_MIB)),
        "cpu": data.draw(wild(MAX_NODE_CPU_MILLI // 1000)),
        "ram": data.draw(wild(MAX_NODE_MEMORY_BYTES)),
        "max_tasks": data.draw(wild(MAX_NUMBER)),
        "other": {"x": data.draw(wild(MAX_OTHER_AMOUNT))},
    }
    job = {
        "job": "j",
        "team": "q",
        "gpus": data.draw(wild(64)),
        "cpu": data.draw(wild(MAX_NODE_CPU_MILLI // 1000)),
        "ram": data.draw(wild(MAX_NODE_MEMORY_BYTES)),
        "tasks": data.draw(st.integers(0, 3)),
        "priority": data.draw(wild(MAX_PRIORITY)),
        "other": {"x": data.draw(wild(MAX_OTHER_AMOUNT))},
        "even": {
            "labels": {"app": "web"},
            "max_skew": data.draw(wild(MAX_NUMBER)),
            "min_domains": data.draw(wild(MAX_NUMBER)),
        },
        "prefer": {"selector": {"disk": {"above": data.draw(wild(1 << 59))}}, "weight": data.draw(wild(MAX_WEIGHT))},
        "disruption_budget": data.draw(wild(MAX_NUMBER)),
    }
    queue = {
        "quota": data.draw(wild(MAX_AMOUNT // 1000)),
        "weight": data.draw(wild(MAX_WEIGHT)),
        "priority": data.draw(wild(MAX_PRIORITY)),
    }
    text = json.dumps({"cluster": {"nodes": [node]}, "queues": {"q": queue}, "jobs": [job]})
    place = Place("cluster.yaml", parse(text, "cluster.yaml"))
    try:
        snapshot = build_cluster(shaped(place, ClusterFileSpec, "cluster"), place).snapshot
    except (InputError, QueueTreeError):
        return
    ledger = Ledger.of(snapshot)
    verify_on(plan(ledger), ledger)
