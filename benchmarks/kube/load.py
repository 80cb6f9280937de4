"""The process that creates pods and sees what becomes of them: `python -m benchmarks.kube.load < order > trace`.

Place in the flow: run ─Order─▶ **load** ─Trace─▶ figures. It is a process of its own, so that nothing else that the
benchmark does costs a measurement. Everything it sees it has from watches of its own, which are begun before the first
pod is created; times are of this machine's monotonic clock.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from time import perf_counter, process_time
from typing import Final

import msgspec

from benchmarks.kube.objects import GROUPS_PATH, PODS_PATH, PROBE, PROBE_LABEL
from benchmarks.kube.wire import METADATA, WHOLE, Line, Server

CONNECTIONS: Final = 8
FOUND: Final = 200
CREATED: Final = 201
BOUND_ONLY: Final = "&fieldSelector=spec.nodeName!%3D"
PROBES_ONLY: Final = f"&labelSelector={PROBE_LABEL}%3D{PROBE}"
UNSCHEDULABLE: Final = "UnschedulableOnNodePool"


class Kind(StrEnum):
    """What can happen to an object."""

    SENT = "sent"
    CREATED = "created"
    BOUND = "bound"
    EVICTED = "evicted"
    """It has a time to go, or is gone already."""
    GONE = "gone"
    SEEN = "seen"
    """A probe is in the watch, as it is for every scheduler."""
    PLACED = "placed"
    """A probe has a node."""
    EXPLAINED = "explained"
    """A probe has a condition that says why it waits."""
    GROUP_EXPLAINED = "group-explained"


class Creation(msgspec.Struct, frozen=True):
    """An object to be created."""

    path: str
    """The collection's."""
    name: str
    body: msgspec.Raw


class Order(msgspec.Struct, frozen=True):
    """What to create, and what to wait for."""

    server: Server
    creations: list[Creation]
    kind: Kind
    count: int
    """How many times of this kind end it."""
    timeout_s: float
    first: list[Creation] = []
    """What is created before: the group of a gang."""
    linger_s: float = 0
    """How long to go on looking then: an explanation may be corrected."""
    connections: int = CONNECTIONS


class Trace(msgspec.Struct):
    """When each thing first happened to each object, in seconds; of an explanation, when it became what it is."""

    times: dict[Kind, dict[str, float]]
    said: dict[str, str]
    """Why probes and groups wait, in the contestant's words."""
    cpu_s: float = 0
    """What this process has used."""
    taken_up: int = 0
    """How often a watch had ended and was begun again."""

    def of(self, kind: Kind) -> dict[str, float]:
        return self.times.get(kind, {})


# ------------------------------------------------------------------------------------------------------- what is read


class _Condition(msgspec.Struct):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class _Spec(msgspec.Struct, rename="camel"):
    node_name: str = ""


class _Status(msgspec.Struct, rename="camel"):
    conditions: list[_Condition] = []
    scheduling_conditions: list[_Condition] = []


class Seen(msgspec.Struct):
    """A pod or a group, as far as it is looked at."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)


class Event(msgspec.Struct):
    """One line of a watch."""

    type: str
    object: Seen


_event: Final = msgspec.json.Decoder(Event)
_listed: Final = msgspec.json.Decoder(Seen)

Found = tuple[Kind, str]
"""What happened, and the sentence that goes with it."""
Reader = Callable[[Event], Iterator[Found]]


def of_any_pod(event: Event) -> Iterator[Found]:
    """Only pods that have a node are in this watch, without their contents."""
    if event.type == "DELETED":
        yield Kind.GONE, ""
    if event.type == "DELETED" or event.object.metadata.deletion_timestamp:
        yield Kind.EVICTED, ""
    else:
        yield Kind.BOUND, ""


def of_probe(event: Event) -> Iterator[Found]:
    yield Kind.SEEN, ""
    if event.object.spec.node_name:
        yield Kind.PLACED, ""
    for one in event.object.status.conditions:
        if one.type == "PodScheduled" and one.status == "False" and one.reason == "Unschedulable" and one.message:
            yield Kind.EXPLAINED, one.message


def of_group(event: Event) -> Iterator[Found]:
    for one in event.object.status.scheduling_conditions:
        if one.type == UNSCHEDULABLE and one.status == "True" and one.message:
            yield Kind.GROUP_EXPLAINED, one.message


# ------------------------------------------------------------------------------------------------------------- doing


class Notes:
    """The trace while it is written, and whether what is waited for has happened."""

    def __init__(self, kind: Kind, count: int) -> None:
        self.trace = Trace({each: {} for each in Kind}, {})
        self.done = asyncio.Event()
        self._kind, self._count = kind, count

    def note(self, kind: Kind, name: str, said: str = "") -> None:
        times = self.trace.times[kind]
        if name in times and said == self.trace.said.get(name, ""):
            return
        times[name] = perf_counter()
        if said:
            self.trace.said[name] = said
        if kind is self._kind and len(times) >= self._count:
            self.done.set()


class Watch:
    """One collection, followed from now on. A watch that ends is taken up where it ended: the server ends slow ones."""

    def __init__(self, server: Server, path: str, query: str, accept: str, read: Reader) -> None:
        self._server, self._path, self._query, self._accept, self._read = server, path, query, accept, read
        self._version = ""

    async def begin(self, notes: Notes) -> asyncio.Task[None]:
        line = await self._server.dial()
        status, listed = await line.listing(f"{self._path}?limit=1")
        if status != FOUND:
            raise RuntimeError(f"{self._path} cannot be listed: {status} {listed.decode(errors='replace')}")
        self._version = _listed.decode(listed).metadata.resource_version
        return asyncio.create_task(self._hear(line, notes))

    async def _hear(self, line: Line, notes: Notes) -> None:
        while True:
            path = f"{self._path}?watch=1&resourceVersion={self._version}{self._query}"
            async for lines in line.watch(path, self._accept):
                for each in lines:
                    self._note(_event.decode(each), notes)
            line.close()
            line = await self._server.dial()
            notes.trace.taken_up += 1

    def _note(self, event: Event, notes: Notes) -> None:
        about = event.object.metadata
        self._version = about.resource_version
        for kind, said in self._read(event):
            notes.note(kind, about.name, said)


async def create(server: Server, creations: list[Creation], connections: int, notes: Notes) -> None:
    """On several connections at once, each the next one that is left."""
    left = iter(creations)
    lines = [await server.dial() for _ in range(connections)]

    async def create_in_turn(number: int) -> None:
        for each in left:
            notes.note(Kind.SENT, each.name)
            status, content = await lines[number].create(each.path, bytes(each.body))
            if status != CREATED:
                raise RuntimeError(f"{each.name} was not created: {status} {content.decode(errors='replace')}")
            notes.note(Kind.CREATED, each.name)

    await asyncio.gather(*(create_in_turn(number) for number in range(connections)))
    for line in lines:
        line.close()


async def carry_out(order: Order) -> Trace:
    notes = Notes(order.kind, order.count)
    watches = [
        Watch(order.server, PODS_PATH, BOUND_ONLY, METADATA, of_any_pod),
        Watch(order.server, PODS_PATH, PROBES_ONLY, WHOLE, of_probe),
        *([Watch(order.server, GROUPS_PATH, "", WHOLE, of_group)] if order.first else []),
    ]
    watching = [await each.begin(notes) for each in watches]
    if order.first:
        await create(order.server, order.first, 1, Notes(order.kind, 0))
    await asyncio.wait_for(create(order.server, order.creations, order.connections, notes), order.timeout_s)
    waiting = asyncio.create_task(notes.done.wait())
    ended, _ = await asyncio.wait([waiting, *watching], timeout=order.timeout_s, return_when=asyncio.FIRST_COMPLETED)
    for each in ended:
        each.result()
    await asyncio.sleep(order.linger_s)
    notes.trace.cpu_s = process_time()
    return notes.trace


def main() -> int:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    sys.stdout.buffer.write(msgspec.json.encode(asyncio.run(carry_out(order))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
