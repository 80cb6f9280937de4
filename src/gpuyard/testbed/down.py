"""Taking a testbed down, from its record alone.

Place in the flow: cli, up, tests ─Record─▶ **down**. Processes first, because mounts, namespaces and interfaces go with
them; then what the kernel keeps by name; the record last. Each step finds nothing to do where its work is done.
"""

from __future__ import annotations

from gpuyard.testbed import cables, cgroups, machine
from gpuyard.testbed.limits import put_limits_back
from gpuyard.testbed.record import Record, choosing_a_slot, forget, read_record, working_on


def take_down(name: str) -> Record:
    record = read_record(name)
    with working_on(name):
        tear_down(record)
    return record


def tear_down(record: Record) -> None:
    machine.switch_off(record)
    # Somebody killed a moment ago may just have started one more; without its script it cannot live.
    machine.remove_scripts(record)
    machine.switch_off(record)
    cables.remove(record)
    cgroups.remove(record)
    with choosing_a_slot():
        forget(record)
        put_limits_back()
