"""What is wrong with a testbed, in words."""

from __future__ import annotations

import msgspec

from gpuyard.testbed.status import DOWN, RUNNING, STOPPED, ComponentStatus, MachineStatus, problems_of
from tests.testbed.samples import a_record

READY = msgspec.structs.replace(a_record(), ready_after_ms=1)


def a_machine(name: str, *, on: bool = True, ready: bool = True, **components: str) -> MachineStatus:
    told = tuple(ComponentStatus(one, state, None, 0, 0) for one, state in components.items())
    return MachineStatus(name, on, ready, "198.18.0.2", 0, told)


def test_nothing_is_wrong_with_one_that_is_well() -> None:
    assert list(problems_of(READY, [a_machine("control", etcd=RUNNING), a_machine("node-1", kubelet=RUNNING)])) == []


def test_everything_that_is_wrong_is_named() -> None:
    machines = [
        a_machine("control", etcd=RUNNING, kwok=STOPPED),
        a_machine("node-1", ready=False, kubelet=DOWN),
        a_machine("node-2", on=False, ready=False, kubelet=DOWN),
    ]
    assert list(problems_of(a_record(), machines)) == [
        "it did not come up whole",
        "kwok of control is stopped",
        "node-1 is not ready",
        "kubelet of node-1 is down",
        "node-2 is off",
    ]
