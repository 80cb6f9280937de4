"""Readings into the state directories that libnvidia-ml.so.1 and nvidia-smi read.

Place in the flow: model ─MachineReading─▶ **publish** ─▶ <root>/<machine>/state ─▶ NVML, nvidia-smi.
Invariant: there is one writer of a root; a reader sees whole readings only, whatever happens to the writer.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Final

from gpuyard.errors import FakeGpuError
from gpuyard.fakegpu.facts import ProductFacts, product_facts
from gpuyard.fakegpu.layout import HEADER, MAGIC, PAGE, VERSION
from gpuyard.fakegpu.notices import NoticeLog
from gpuyard.fakegpu.pack import Body, Capacity, pack
from gpuyard.fakegpu.reading import MachineReading

STATE: Final = "state"
REPLACED_AT: Final = HEADER.offsets()["replaced"]
PUBLISHED_AT: Final = HEADER.offsets()["published"]
# Processes come and go; room for some more than there are spares a new file for each of them.
SPARE_PROCESSES: Final = 8


class Publisher:
    """Writes the readings of any number of machines below one root directory. Use it as a context, or call `close`.

    No file stays open between two writes, so thousands of machines need neither descriptors nor memory here.
    """

    def __init__(self, root: Path, facts_of: Callable[[str], ProductFacts] = product_facts) -> None:
        self._root = root
        self._facts_of = facts_of
        self._files: dict[str, MachineFile] = {}
        self._lock = lock(root)

    def write(self, reading: MachineReading) -> None:
        """Make this reading the one every face of its machine shows."""
        if reading.machine not in self._files:
            self._files[reading.machine] = MachineFile(self.directory(reading.machine))
        self._files[reading.machine].write(reading, pack(reading, self._facts_of))

    def directory(self, machine: str) -> Path:
        """What GPUYARD_FAKE_STATE names, and what a container mounts."""
        return self._root / machine

    def remove(self, machine: str) -> None:
        """Take a machine away: who looks again finds no driver. Nothing happens where there is no such machine."""
        self._files.pop(machine, None)
        remove_state(self.directory(machine))

    def close(self) -> None:
        """Stop writing. The last readings stay, so that a daemon can be started again under running programs."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def __enter__(self) -> Publisher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def lock(root: Path) -> int:
    """Hold the root for one writer, until the descriptor is closed or the process ends."""
    with said_plainly(root):
        root.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise FakeGpuError(
            f"{root} is written by another process", fix="stop that one, or choose another state directory"
        ) from None
    return descriptor


@contextmanager
def said_plainly(path: Path) -> Iterator[None]:
    """Whatever the file system refuses becomes an error a person can use."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise FakeGpuError(f"{path} cannot be written: {reason}", fix="choose another state directory") from None


class MachineFile:
    """The state file of one machine: made, grown and written."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / STATE
        self._capacity = Capacity(0, 0, 0, 0)
        self._published = 0
        self._notices = NoticeLog()

    def write(self, reading: MachineReading, body: Body) -> None:
        self._notices.note(reading)
        with said_plainly(self._path):
            if self._published and self._capacity.holds(body.needs) and self._path.exists():
                self._step(self._placed(body))
            else:
                self._capacity = room_for(body.needs)
                self._create(self._placed(body))

    def _step(self, body: bytes) -> None:
        with self._path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            publish(memory, self._published + 1, body)
        self._published += 1

    def _placed(self, body: Body) -> bytes:
        return body.placed(self._capacity, self._notices.count, self._notices.ring)

    def _create(self, body: bytes) -> None:
        """Put a new file in place of the old one, already holding the reading, and tell the readers of the old one."""
        self._published += 1
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_name(f".{STATE}.new")
        fresh.write_bytes(header(self._capacity, self._published) + both_bodies(body))
        fresh.chmod(0o644)
        replace(fresh, self._path)


def room_for(needs: Capacity) -> Capacity:
    return Capacity(needs.products, needs.devices, needs.migs, needs.processes * 2 + SPARE_PROCESSES)


def header(capacity: Capacity, published: int) -> bytes:
    products, devices, migs, processes, end = capacity.offsets()
    return HEADER.pack(
        {
            "magic": MAGIC.decode().rstrip("\0"),
            "version": VERSION,
            "replaced": 0,
            "published": published,
            "body_offset": PAGE,
            "body_offset_1": PAGE + paged(end),
            "body_size": end,
            "product_capacity": capacity.products,
            "device_capacity": capacity.devices,
            "mig_capacity": capacity.migs,
            "process_capacity": capacity.processes,
            "products_at": products,
            "devices_at": devices,
            "migs_at": migs,
            "processes_at": processes,
        }
    ).ljust(PAGE, b"\0")


def both_bodies(body: bytes) -> bytes:
    return body.ljust(paged(len(body)), b"\0") * 2


def paged(size: int) -> int:
    return -(-size // PAGE) * PAGE


def replace(fresh: Path, path: Path) -> None:
    """Rename over the old file and mark it; whoever still maps the old one looks for the new one."""
    old = os.open(path, os.O_RDWR | os.O_CLOEXEC) if path.exists() else -1
    try:
        fresh.replace(path)
        if old >= 0:
            mark_replaced(old)
    finally:
        if old >= 0:
            os.close(old)


def remove_state(directory: Path) -> None:
    path = directory / STATE
    if not path.exists():
        return
    old = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        path.unlink()
        mark_replaced(old)
    finally:
        os.close(old)
    # What a writer that was killed left goes too; what is somebody else's stays, and its directory with it.
    path.with_name(f".{STATE}.new").unlink(missing_ok=True)
    with suppress(OSError):
        directory.rmdir()


def mark_replaced(descriptor: int) -> None:
    if os.fstat(descriptor).st_size >= PAGE:
        os.pwrite(descriptor, (1).to_bytes(4, "little"), REPLACED_AT)


def publish(memory: mmap.mmap, number: int, body: bytes) -> None:
    """Write step `number` into the body nobody reads, then make it current with one aligned store of eight bytes."""
    words = memoryview(memory).cast("Q")
    start = words[(PUBLISHED_AT // 8) + 1 + number % 2]
    memory[start : start + len(body)] = body
    store_barrier()
    words[PUBLISHED_AT // 8] = number
    words.release()


_fence = threading.Lock()
_fence.acquire()
_fence_turn = threading.Lock()


def store_barrier() -> None:
    """Let every store before this line be seen before any store after it, also on processors that reorder stores.

    Releasing a lock orders what came before it, taking it orders what comes after it.
    """
    with _fence_turn:
        _fence.release()
        _fence.acquire()
