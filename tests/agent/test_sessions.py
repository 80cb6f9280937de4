"""An agent follows what it is told in this session, and nothing that answers an earlier one."""

from __future__ import annotations

from gpuyard.agent.core import Core, Identity
from gpuyard.wire.agents import AttemptId, Desired, MachineFacts, Welcome
from tests.agent.core_world import LEASE_MS, MadeUpRuntime, an_assignment


def test_after_a_restart_of_the_machine_an_answer_to_the_former_session_counts_for_nothing() -> None:
    runtime = MadeUpRuntime()
    core = Core(Identity("n", "i", "b", "0"), runtime, MachineFacts())
    core.connected(1_000)
    core.welcomed(Welcome("m", "0", LEASE_MS))
    core.wants(Desired(900_000, (an_assignment(AttemptId("old", 0, 1)),)), 1_001)
    report = core.report(1_002)
    assert report is not None
    runtime.now_ms = 1_003
    core.wants(Desired(report.sent_ms, (an_assignment(AttemptId("new", 0, 1)),)), 1_003)
    assert runtime.starts == [AttemptId("new", 0, 1)]
