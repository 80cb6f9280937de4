"""What a testbed has only where it was asked for: nodes by KWOK, DNS, operators.

Place in the flow: up, bed ─Extras─▶ **extras** ─▶ components of the control plane that its script knows from the start
and holds back until somebody wants them. So they can be added to a testbed that runs.
Invariant: what the record says was asked for; the record is written before it is started.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard.testbed import dns, kwok, machine
from gpuyard.testbed.api import Api
from gpuyard.testbed.boot import CONTAINERD, KUBELET
from gpuyard.testbed.control_plane import CONTROLLER_MANAGER, Component, added_program, control_components
from gpuyard.testbed.golang import Tell
from gpuyard.testbed.known_operators import ALL, TRAINING
from gpuyard.testbed.operators import Operator
from gpuyard.testbed.programs import COREDNS, KWOK, built_programs
from gpuyard.testbed.record import CONTROL, Extras, Record, write_record

MODULES: Final = {kwok.NAME: KWOK, dns.NAME: COREDNS, **{one.name: one.module for one in ALL}}


def extra_components(record: Record) -> list[Component]:
    """All there are; each is held until it is added."""
    return [kwok.component(record), dns.component(record), *(one.component(record) for one in ALL)]


def names_of_extras(extras: Extras) -> tuple[str, ...]:
    asked = {kwok.NAME: extras.kwok > 0, dns.NAME: extras.dns}
    asked |= {one.name: one in operators_of(extras) for one in ALL}
    return tuple(name for name, wanted in asked.items() if wanted)


def operators_of(extras: Extras) -> list[Operator]:
    return [one for one in ALL if one.name in extras.operators or (one is TRAINING and extras.training_operator)]


def names_of_components(record: Record, machine: str) -> tuple[str, ...]:
    """All that may run on a machine of this testbed."""
    if machine != CONTROL:
        return (CONTAINERD, KUBELET)
    return (*(component.name for component in control_components(record)), *names_of_extras(record.extras))


def add_extras(record: Record, extras: Extras, api: Api, tell: Tell) -> Record:
    """What it has not got yet; the record as it is then."""
    modules = (MODULES[name] for name in names_of_extras(extras))
    programs = {**record.programs, **built_programs(modules, tell)}
    record = msgspec.structs.replace(record, extras=record.extras.with_more(extras), programs=programs)
    write_record(record)
    if extras.dns:
        add_dns(record, api, tell)
    for operator in operators_of(extras):
        add_operator(record, operator, api, tell)
    if extras.kwok:
        add_kwok(record, extras, api, tell)
    return record


def add_dns(record: Record, api: Api, tell: Tell) -> None:
    (record.machine_folder(CONTROL) / dns.FILE).write_text(dns.corefile(record), encoding="utf-8")
    start(record, dns.NAME)
    dns.introduce(api, record)
    tell(f"DNS          {record.addresses.dns}, cluster.local")


def add_operator(record: Record, operator: Operator, api: Api, tell: Tell) -> None:
    operator.lay_out(record)
    operator.introduce(api, record)
    start(record, operator.name)
    operator.wait_ready(api, record)
    tell(f"operator     {operator.name} {operator.module.version}: {operator.makes}")


def prepare_extras(record: Record, extras: Extras) -> None:
    """What has to be so before the other components start; later it costs one of them a restart."""
    if extras.kwok:
        kwok.be_patient(record)


def add_kwok(record: Record, extras: Extras, api: Api, tell: Tell) -> None:
    if kwok.be_patient(record):
        machine.kill_component(record, CONTROL, CONTROLLER_MANAGER)
    start(record, kwok.NAME)
    kwok.make_nodes(api, record, extras)
    tell(f"KWOK         {extras.kwok} nodes, kwok-1 to kwok-{extras.kwok}")


def start(record: Record, name: str) -> None:
    """Where the script looks for its program there is a link to it from now on."""
    link = added_program(record, name)
    link.parent.mkdir(exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(record.program(name))
    machine.forget_endings(record, CONTROL, name)
    machine.release_component(record, CONTROL, name)
