"""The running manager, with functions of the scheduler that raise: it goes on, and says what is wrong."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from gpuyard.loop import loop as loop_module
from gpuyard.model.nodes import Device
from gpuyard.model.plan import Plan
from gpuyard.scheduler.jobbook import Waiter
from gpuyard.scheduler.placement import Placer
from gpuyard.service import questions as questions_module
from gpuyard.service.core import Core
from gpuyard.wire.agents import MachineFacts
from gpuyard.worlds.standalone import hub as hub_module
from gpuyard.worlds.standalone.intents import LabelNode
from gpuyard.worlds.standalone.records import State
from tests.service.yard import Yard

pytestmark = pytest.mark.slow


class PoisonedError(Exception):
    """Raised by a function of the manager on purpose."""


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Yard]:
    with Yard(tmp_path) as running:
        running.poisoned = True
        yield running


def until(holds: Callable[[], bool], seconds: float = 15) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come to be"
        time.sleep(0.02)


def poison_job(monkeypatch: pytest.MonkeyPatch, label: str) -> None:
    place = Placer.place

    def poisoned(self: Placer, waiter: Waiter) -> bool:
        if ("poison", label) in waiter.job.labels:
            raise PoisonedError(f"secret of {label}")
        return place(self, waiter)

    monkeypatch.setattr(Placer, "place", poisoned)


def state_of(yard: Yard, id: str) -> str:
    return str(yard.ask("root", "GET", f"/v1/jobs/{id}").json()["state"])


def warnings(yard: Yard, user: str = "root") -> list[str]:
    return list(yard.ask(user, "GET", "/v1/status").json()["warnings"])


def test_a_job_that_planning_fails_with_waits_and_all_others_run(
    yard: Yard, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    poison_job(monkeypatch, "yes")
    with caplog.at_level(logging.ERROR):
        bad = yard.submit("root", team="vision", gpus=1, labels={"poison": "yes"})
        good = yard.submit("root", team="vision", gpus=1)
        until(lambda: state_of(yard, good) == "running")
    assert state_of(yard, bad) == "waiting"
    shown = yard.ask("root", "GET", f"/v1/jobs/{bad}").json()
    assert "planning this job failed" in str(shown)
    explained = yard.ask("root", "GET", f"/v1/jobs/{bad}/explanation").json()
    assert explained["explanation"]["blockers"][0]["token"] == "PlanningFailed"
    assert "secret" not in str(shown) + str(explained), "what an exception says stays with those who run the cluster"
    assert any(f"job {bad} is left out" in line and "secret of yes" in line for line in warnings(yard))
    assert 'gpuyard_left_out_of_planning{kind="job"} 1' in yard.ask("root", "GET", "/metrics").text
    logged = [record for record in caplog.records if record.getMessage().startswith("plan failed")]
    assert len(logged) == 1
    assert "Traceback" in logged[0].getMessage()


def test_planning_that_always_fails_ends_nothing(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    before = yard.submit("root", team="vision", gpus=1)
    until(lambda: state_of(yard, before) == "running")

    def always(*_: object) -> Plan:
        raise RecursionError("no end")

    with monkeypatch.context() as patch:
        patch.setattr(loop_module, "plan", always)
        later = yard.submit("root", team="vision", gpus=1)
        until(lambda: any("planning fails" in line and "no end" in line for line in warnings(yard)))
        assert (state_of(yard, before), state_of(yard, later)) == ("running", "waiting")
        ready = yard.ask("", "GET", "/readyz")
        assert (ready.status_code, "planning fails" in ready.text, "no end" in ready.text) == (200, True, False)
    until(lambda: state_of(yard, later) == "running")
    assert warnings(yard) == []
    assert yard.ask("", "GET", "/readyz").text == ""


def test_a_question_that_raises_is_answered_as_a_fault_and_spoils_nothing(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = yard.submit("root", team="vision", gpus=1)

    def fails(*_: object) -> object:
        raise PoisonedError("xyzzy")

    with monkeypatch.context() as patch:
        for name in ("explain_on", "plan", "what_if_on"):
            patch.setattr(questions_module, name, fails)
        asked = yard.ask("root", "GET", f"/v1/jobs/{id}/explanation")
        assert (asked.status_code, asked.json()["reason"], "xyzzy" in asked.text) == (500, "Internal", False)
    assert yard.ask("root", "GET", f"/v1/jobs/{id}/explanation").status_code == 200


def test_what_a_machine_is_told_that_cannot_be_worked_out_keeps_its_lease(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = yard.submit("root", team="vision", gpus=1)
    until(lambda: state_of(yard, id) == "running")
    told = yard.manager.core.hub.contacts["m1"].told
    assert told is not None

    def fails(*_: object) -> object:
        raise PoisonedError("assignments")

    with monkeypatch.context() as patch:
        patch.setattr(hub_module, "assignments", fails)
        yard.call(lambda: report(yard))
        until(lambda: (yard.manager.core.hub.contacts["m1"].told or told).echo_ms > told.echo_ms)
        last = yard.manager.core.hub.contacts["m1"].told
        assert last is not None
        assert [one.id for one in last.assignments] == [one.id for one in told.assignments]
    assert yard.manager.ready


async def report(yard: Yard) -> None:
    yard.machine.report()


def test_one_part_of_the_tick_that_raises_stops_no_other(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> object:
        raise PoisonedError("retention")

    monkeypatch.setattr(Core, "_long_over", fails)
    until(lambda: any("retention fails: PoisonedError" in line for line in warnings(yard)))
    assert [one.item for one in yard.troubles] == ["retention"]
    assert yard.manager.ready
    good = yard.submit("root", team="vision", gpus=1)
    until(lambda: state_of(yard, good) == "running")


def test_a_snapshot_with_a_node_out_of_range_is_not_used_and_the_log_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What an agent could write until now: 64 devices, CPU and memory of 2^64-1."""
    with Yard(tmp_path) as yard:
        yard.call(lambda: spoil(yard.manager.state))
        seq = yard.manager.state.seq
        yard.manager.core.journal.snapshot_seq = -10_000
        yard.submit("root", team="vision", gpus=1)
        until(lambda: any(kept.seq > seq for kept in yard.call(lambda: snapshots(yard))))
    with Yard(tmp_path) as again:
        job = again.submit("root", team="vision", gpus=1)
        until(lambda: state_of(again, job) == "running")
        assert any("cannot be used: node liar: it reports 64 GPUs" in line for line in caplog.messages)


def test_a_node_out_of_range_is_left_out_of_planning(tmp_path: Path) -> None:
    """However it came into the state."""
    with Yard(tmp_path) as yard:
        yard.call(lambda: spoil(yard.manager.state))
        yard.do(LabelNode("m1", {"zone": "a"}))
        yard.manager.core.world._nodes["liar"] = None
        job = yard.submit("root", team="vision", gpus=1)
        until(lambda: state_of(yard, job) == "running")
        node = yard.ask("root", "GET", "/v1/nodes/liar").json()
        assert "64 GPUs" in str(node["trouble"])
        assert any("node liar is left out of planning: it reports 64 GPUs" in line for line in warnings(yard))
        assert yard.ask("root", "GET", "/v1/nodes").status_code == 200
        assert yard.ask("root", "GET", "/metrics").status_code == 200


async def spoil(state: State) -> None:
    facts = MachineFacts(tuple(Device(memory_mib=80_000) for _ in range(64)), (1 << 64) - 1, (1 << 64) - 1)
    state.nodes["liar"] = replace(state.nodes["m1"], name="liar", facts=facts)


async def snapshots(yard: Yard) -> list[Any]:
    return list(yard.manager.store.snapshots())
