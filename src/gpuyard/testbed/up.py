"""Bringing a testbed up.

Place in the flow: cli, tests ─Wanted─▶ **up** ─▶ a Record that is ready. The order: what the machine must have, the
programs, a slot, files, machines, the API server, kubelets, extras.
Invariant: the record is written before anything else is made; whatever fails on the way is taken down again.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.clock import monotonic_ms, wall_ms
from gpuyard.testbed import boot, cables, cgroups, credentials, machine, objects, system
from gpuyard.testbed.addresses import MAX_NODES, MAX_SLOTS, free_slot
from gpuyard.testbed.api import Api, wait_until
from gpuyard.testbed.bed import Bed, connect, node_is_ready, wait_booted
from gpuyard.testbed.control_plane import API_SERVER, CONTROLLER_MANAGER, ETCD, SCHEDULER, control_components
from gpuyard.testbed.down import tear_down
from gpuyard.testbed.extras import add_extras, extra_components, prepare_extras
from gpuyard.testbed.golang import Tell
from gpuyard.testbed.images import BUSYBOX, PAUSE, write_archive
from gpuyard.testbed.limits import raise_limits
from gpuyard.testbed.node_files import node_files
from gpuyard.testbed.programs import built_programs, modules_for
from gpuyard.testbed.record import (
    CONTROL,
    DEFAULT_NAME,
    Extras,
    Record,
    check_name,
    choosing_a_slot,
    find_record,
    names,
    node_name,
    working_on,
    write_record,
)

BOOT_MS: Final = 30_000
READY_MS: Final = 180_000


class Wanted(msgspec.Struct, frozen=True):
    """What somebody asks for."""

    name: str = DEFAULT_NAME
    nodes: int = 4
    extras: Extras = Extras()
    fresh: bool = False
    """Take down what has this name first, even if it is well."""
    keep: bool = False
    """Leave a testbed that fails to come up as it is, to look into it."""


def bring_up(wanted: Wanted, tell: Tell) -> Bed:
    check(wanted)
    system.prepare(tell)
    programs = built_programs(modules_for(wanted.extras), tell)
    with working_on(wanted.name):
        make_room(wanted, tell)
        record = reserve(wanted, programs)
        with taken_down_on_failure(record, tell, keep=wanted.keep):
            return bring_up_reserved(record, wanted.extras, tell)


def check(wanted: Wanted) -> None:
    check_name(wanted.name)
    if not 0 <= wanted.nodes <= MAX_NODES:
        what = f"a testbed has 0 to {MAX_NODES} real nodes, not {wanted.nodes}"
        raise KubeTestbedError(what, fix="for many, let KWOK pretend them: --kwok 500")


def make_room(wanted: Wanted, tell: Tell) -> None:
    """What is left of an earlier one of this name goes; one that is well stays, unless a fresh one is wanted."""
    old = find_record(wanted.name)
    if old is None:
        return
    if old.ready and not wanted.fresh and machine.find(old, CONTROL):
        fix = f"end it: gpuyard kube testbed down --name {old.name}; replace it: --fresh; or choose another --name"
        raise KubeTestbedError(f'testbed "{old.name}" is up already', fix=fix)
    tell(f'cleaning up what was left of testbed "{old.name}"')
    tear_down(old)


def reserve(wanted: Wanted, programs: dict[str, str]) -> Record:
    with choosing_a_slot():
        others = [record for name in names() if (record := find_record(name))]
        slot = free_slot((record.slot for record in others), cables.routes())
        if slot is None:
            raise KubeTestbedError(f"there are {MAX_SLOTS} testbeds already, or their addresses are in use")
        record = Record(
            name=wanted.name,
            slot=slot,
            mark=secrets.token_hex(16),
            nodes=wanted.nodes,
            extras=Extras(),
            programs=programs,
            snapshotter=system.snapshotter(),
            began_at_ms=wall_ms(),
        )
        write_record(record)
        raise_limits()
    return record


@contextmanager
def taken_down_on_failure(record: Record, tell: Tell, *, keep: bool) -> Iterator[None]:
    try:
        yield
    except BaseException:
        if keep:
            tell(f"left as it is: {record.folder}; gpuyard kube testbed down --name {record.name} removes it")
        else:
            tell("taking it down again")
            tear_down(record)
        raise


def bring_up_reserved(record: Record, extras: Extras, tell: Tell) -> Bed:
    began_ms = monotonic_ms()
    lay_out(record)
    start_machines(record)
    with Api(record) as api:
        wait_for_api_server(record, api)
        tell(f"API server   {credentials.server_url(record)}")
        objects.make(api)
        prepare_extras(record, extras)
        release(record)
        wait_until(lambda: objects.accounts_are_there(api), "the first service account", timeout_ms=READY_MS)
        wait_for_nodes(record, api)
        tell(f"nodes        {', '.join(record.node_names()) or 'none'}")
        record = add_extras(record, extras, api, tell)
    ready = msgspec.structs.replace(record, ready_after_ms=monotonic_ms() - began_ms)
    write_record(ready)
    tell(f"ready after  {ready.ready_after_ms / 1000:.1f} s")
    return Bed(ready)


# --------------------------------------------------------------------------------------------------------------- files


def lay_out(record: Record) -> None:
    """Everything in the folder, so that starting is all that is left to do."""
    for name in record.machine_names():
        for folder in (machine.LOG, machine.HOLD, machine.ENDED):
            (record.machine_folder(name) / folder).mkdir(parents=True, exist_ok=True)
    credentials.make(record)
    lay_out_control(record)
    archives = make_images(record)
    for number in range(1, record.nodes + 1):
        lay_out_node(record, number, archives)


def lay_out_control(record: Record) -> None:
    folder = record.machine_folder(CONTROL)
    components = [*control_components(record), *extra_components(record)]
    write(folder / machine.SCRIPT, boot.control_script(record, components))
    # All but two wait: without these they would only fail.
    for component in components:
        if component.name not in {ETCD, API_SERVER}:
            machine.hold_component(record, CONTROL, component.name)


def make_images(record: Record) -> list[Path]:
    folder = record.folder / "images"
    folder.mkdir(exist_ok=True)
    archives = [folder / "pause.tar", folder / "busybox.tar"]
    for image, archive in zip((PAUSE, BUSYBOX), archives, strict=True):
        write_archive(image, archive)
    return archives


def lay_out_node(record: Record, number: int, archives: list[Path]) -> None:
    name = node_name(number)
    folder = record.machine_folder(name)
    for below in ("kubelet", "containerd", "pod-logs", "images", "cni", "settings"):
        (folder / below).mkdir(exist_ok=True)
    for archive in archives:
        (folder / "images" / archive.name).symlink_to(archive)
    plugins = system.cni_folder()
    assert plugins is not None, "the machine was prepared"
    for path, text in node_files(record, number, snapshotter=record.snapshotter, cni_bin=plugins).items():
        write(folder / path, text)
    script = boot.node_script(record, number, record.program("kubelet"), snapshotter=record.snapshotter)
    write(folder / machine.SCRIPT, script)
    machine.hold_component(record, name, boot.KUBELET)


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


# --------------------------------------------------------------------------------------------------------------- start


def start_machines(record: Record) -> None:
    cgroups.make(record)
    for name in record.machine_names():
        machine.switch_on(record, name)
    control = machine.wait_for(record, CONTROL, timeout_ms=BOOT_MS)
    cables.connect_host(record, control)
    # Only then is there a bridge for the cables of the others.
    wait_booted(record, CONTROL)
    for node in record.node_names():
        connect(record, control, node)


def release(record: Record) -> None:
    """What would only have failed without an API server."""
    for component in (CONTROLLER_MANAGER, SCHEDULER):
        machine.release_component(record, CONTROL, component)
    for node in record.node_names():
        machine.release_component(record, node, boot.KUBELET)


def wait_for_api_server(record: Record, api: Api) -> None:
    def answers() -> bool:
        machine.refuse_what_does_not_stay(record, CONTROL, (ETCD, API_SERVER))
        return api.answers("/readyz")

    wait_until(answers, "the API server's readiness", timeout_ms=READY_MS)


def wait_for_nodes(record: Record, api: Api) -> None:
    def ready() -> bool:
        machine.refuse_what_does_not_stay(record, CONTROL, (CONTROLLER_MANAGER, SCHEDULER))
        for node in record.node_names():
            machine.refuse_what_does_not_stay(record, node, (boot.CONTAINERD, boot.KUBELET))
        return nodes_are_ready(api, record)

    wait_until(ready, "readiness of all nodes", timeout_ms=READY_MS)


def nodes_are_ready(api: Api, record: Record) -> bool:
    nodes = {node["metadata"]["name"]: node for node in api.get("/api/v1/nodes")["items"]}
    return all(name in nodes and node_is_ready(nodes[name]) for name in record.node_names())
