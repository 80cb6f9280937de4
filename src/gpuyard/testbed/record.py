"""What a testbed is made of, written down before any of it is made.

Place in the flow: up ─Record─▶ **record.json** ─▶ down, status and every other command. Everything that exists of a
testbed outside its folder follows from the record: processes by their mark, the interface, the control groups. So
whoever is killed on the way leaves behind what the next one can find.
Invariant: a name and a slot belong to one testbed of this machine; the record is the last that goes.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import KubeTestbedError
from gpuyard.platform.clock import monotonic_ms, sleep_ms
from gpuyard.platform.files import write_private
from gpuyard.platform.locks import hold, holder
from gpuyard.testbed.addresses import Addresses

ROOT: Final = Path("/var/lib/gpuyard/testbeds")
"""One place for the whole machine, because addresses, interfaces and control groups are the machine's too."""
MARK: Final = "GPUYARD_TESTBED_MARK"
"""The variable every process of a testbed is started with."""
NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")
DEFAULT_NAME: Final = "default"
RECORD: Final = "record.json"
CONTROL: Final = "control"
"""The machine that holds etcd, the API server and everything else that is no node."""
ANY: Final = ".any"
LOCK_POLL_MS: Final = 50
SLOT_WAIT_MS: Final = 30_000


class Extras(msgspec.Struct, frozen=True):
    """What is there only where it was asked for."""

    kwok: int = 0
    """How many nodes KWOK pretends."""
    kwok_gpus: int = 0
    dns: bool = False
    training_operator: bool = False
    operators: tuple[str, ...] = ()
    """Others, by name."""

    @classmethod
    def of(
        cls,
        *,
        kwok: int = 0,
        kwok_gpus: int = 0,
        dns: bool = False,
        training_operator: bool = False,
        operators: Iterable[str] = (),
    ) -> Extras:
        """As asked for, with what that needs: workers look for their master by its name."""
        return cls(kwok, kwok_gpus, dns or training_operator, training_operator, tuple(sorted(set(operators))))

    def with_more(self, more: Extras) -> Extras:
        """Both together; nothing is taken away."""
        return Extras(
            max(self.kwok, more.kwok),
            max(self.kwok_gpus, more.kwok_gpus),
            self.dns or more.dns,
            self.training_operator or more.training_operator,
            tuple(sorted({*self.operators, *more.operators})),
        )


class Record(msgspec.Struct, frozen=True):
    """One testbed."""

    name: str
    slot: int
    mark: str
    nodes: int
    extras: Extras
    programs: dict[str, str]
    """Where each program lies that it was brought up with."""
    snapshotter: str
    began_at_ms: int
    ready_after_ms: int = 0
    """How long it took to come up; 0: it has not."""

    @property
    def ready(self) -> bool:
        return self.ready_after_ms > 0

    def program(self, name: str) -> Path:
        return Path(self.programs[name])

    @property
    def folder(self) -> Path:
        return folder_of(self.name)

    @property
    def addresses(self) -> Addresses:
        return Addresses(self.slot)

    @property
    def interface(self) -> str:
        """This host's end of the cable to the control plane; the only interface we make outside of namespaces."""
        return f"gytb{self.slot}"

    @property
    def cgroup(self) -> str:
        """Below the top of every hierarchy."""
        return f"gpuyard-testbed-{self.name}"

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    def node_names(self) -> list[str]:
        return [node_name(number) for number in range(1, self.nodes + 1)]

    def machine_names(self) -> list[str]:
        return [CONTROL, *self.node_names()]

    def machine_folder(self, machine: str) -> Path:
        return self.folder / machine

    def marked(self, machine: str = "") -> str:
        """What stands in the variables of every process of a machine, or of all machines."""
        return f"{MARK}={self.mark}/{machine}/" if machine else f"{MARK}={self.mark}/"

    def environment(self, machine: str) -> dict[str, str]:
        """All that its processes inherit: no proxy of this machine stands between them."""
        return {"PATH": SYSTEM_PATH, "HOME": str(self.folder), MARK: f"{self.mark}/{machine}/"}


SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def node_name(number: int) -> str:
    return f"node-{number}"


def node_number(record: Record, node: str) -> int:
    if node not in record.node_names():
        there = ", ".join(record.node_names()) or "none"
        raise KubeTestbedError(f'testbed "{record.name}" has no node "{node}"', fix=f"it has {there}")
    return int(node.removeprefix("node-"))


def folder_of(name: str) -> Path:
    return ROOT / name


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        fix = "small letters, digits and hyphens, at most 20 of them"
        raise KubeTestbedError(f'"{name}" cannot be the name of a testbed', fix=fix)


# -------------------------------------------------------------------------------------------------- written and read


def write_record(record: Record) -> None:
    record.folder.mkdir(parents=True, exist_ok=True)
    write_private(record.folder / RECORD, msgspec.json.encode(record))


def find_record(name: str) -> Record | None:
    try:
        return msgspec.json.decode((folder_of(name) / RECORD).read_bytes(), type=Record)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (msgspec.DecodeError, OSError) as error:
        raise KubeTestbedError(
            f"the record of testbed {name} cannot be read: {error}", fix=f"see {folder_of(name) / RECORD}"
        ) from None


def read_record(name: str) -> Record:
    check_name(name)
    record = find_record(name)
    if record is None:
        there = ", ".join(names())
        fix = f"there are: {there}" if there else "start it: gpuyard kube testbed up"
        raise KubeTestbedError(f'there is no testbed "{name}" on this machine', fix=fix)
    return record


def names() -> list[str]:
    """Every testbed of this machine, also those that are half made or half gone."""
    return sorted(path.parent.name for path in ROOT.glob(f"*/{RECORD}"))


def forget(record: Record) -> None:
    """The folder goes, and the record as the last of it: until then it says what may still be there."""
    for path in record.folder.iterdir():
        if path.name != RECORD:
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    (record.folder / RECORD).unlink(missing_ok=True)
    shutil.rmtree(record.folder, ignore_errors=True)


# --------------------------------------------------------------------------------------------------------------- locks


@contextmanager
def working_on(name: str) -> Iterator[None]:
    """Only one process at a time brings a testbed up or down."""
    path = ROOT / f".{name}.lock"
    handle = _held(path)
    if handle is None:
        fix = "wait until it is done, or end it"
        raise KubeTestbedError(f'process {holder(path)} is at work on testbed "{name}"', fix=fix)
    try:
        yield
    finally:
        if find_record(name) is None:
            path.unlink(missing_ok=True)
        os.close(handle)


@contextmanager
def choosing_a_slot() -> Iterator[None]:
    """Only one process at a time looks for a free slot and writes down that it is taken."""
    until_ms = monotonic_ms() + SLOT_WAIT_MS
    handle = _held(ROOT / f"{ANY}.lock")
    while handle is None:
        if monotonic_ms() > until_ms:
            raise KubeTestbedError("another testbed has been choosing its addresses for too long", fix="try again")
        sleep_ms(LOCK_POLL_MS)
        handle = _held(ROOT / f"{ANY}.lock")
    try:
        yield
    finally:
        os.close(handle)


def _held(path: Path) -> int | None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = hold(path)
    except PermissionError:
        raise KubeTestbedError("a testbed makes namespaces, mounts and interfaces", fix="run it as root") from None
    if handle is not None and not _is_at(handle, path):
        # Whoever held it before has removed it meanwhile: what we hold is not what the next one finds.
        os.close(handle)
        return _held(path)
    return handle


def _is_at(handle: int, path: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
