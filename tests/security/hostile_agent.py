"""What a hostile agent may put on its stream: bytes drawn from a seed.

Messages that are valid and lie, valid ones with one hostile value, one of another type, or damaged bytes, and bytes
that are no message at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from gpuyard.model.nodes import Device, MigSlices
from gpuyard.wire.agents import (
    AgentMessage,
    AttemptId,
    AttemptReport,
    Ending,
    Hello,
    Isolation,
    LogPiece,
    MachineFacts,
    Phase,
    ReadParcel,
    Report,
    encode,
)

INTEGERS = (
    -(1 << 63),
    -1,
    0,
    1,
    7,
    62,
    63,
    64,
    255,
    256,
    1 << 31,
    1 << 47,
    1 << 53,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
TEXTS = (
    "",
    "\0",
    "two\nlines",
    "\x1b[2J\x1b]0;title\a",
    "\u202egnp.exe",
    "x" * 254,
    "y" * 70_000,
    "gpuyard:job",
    "hostname",
    "²g.5gb",
    "9" * 200 + "g",
    "9" * 5_000 + "g",
    "7g.80gb",
    "127.0.0.1",
    "fe80::1%eth0; reboot",
    "$(reboot)",
    "../../etc/passwd",
    "-1",
)
OTHERS: tuple[Any, ...] = (None, True, 1.5, float("nan"), float("inf"), b"bytes", [], {}, [[[[]]]], {"": {"": None}})


class Hostile:
    """Draws messages of a node that has these attempts, in a cluster with these others."""

    def __init__(self, rng: random.Random, node: str, own: Sequence[AttemptId], others: Sequence[AttemptId]) -> None:
        self._rng = rng
        self._node = node
        self._own = own
        self._others = others

    def message(self) -> bytes:
        """Any message but the first of a session."""
        makers: tuple[Callable[[], bytes], ...] = (
            lambda: encode(self._any()),
            lambda: self._with_one_hostile_value(self._any()),
            lambda: self._with_one_hostile_value(self._report()),
            lambda: self._damaged(encode(self._any())),
            self._no_message,
        )
        return self._rng.choices(makers, (4, 4, 4, 3, 1))[0]()

    def hello(self, incarnation: str) -> bytes:
        """The first of a session: often honest, so that there is a session."""
        hello = Hello(self._node, incarnation, "b", "0", self._facts())
        if self._rng.random() < 0.7:
            return encode(hello)
        if self._rng.random() < 0.6:
            return self._with_one_hostile_value(hello)
        return self._damaged(encode(hello))

    # ---------------------------------------------------------------------------------------------------------- valid

    def _any(self) -> AgentMessage:
        makers: tuple[Callable[[], AgentMessage], ...] = (
            self._report,
            lambda: Report(self._stamp(), facts=self._facts()),
            lambda: LogPiece(self._integer(), self._integer(), b"forged", self._integer(), self._rng.random() < 0.5),
            lambda: ReadParcel(self._rng.choice(("0" * 64, "f" * 64, *TEXTS)), self._integer()),
            lambda: Hello(self._node, self._text(), self._text(), self._text(), self._facts()),
        )
        return self._rng.choices(makers, (6, 4, 2, 1, 1))[0]()

    def _report(self) -> Report:
        known = [*self._own, *self._others]
        count = self._rng.choice((0, 1, 2, len(known), 60))
        attempts = tuple(self._attempt(self._rng.choice(known)) for _ in range(count) if known)
        facts = self._facts() if self._rng.random() < 0.3 else None
        return Report(self._stamp(), attempts, facts)

    def _attempt(self, id: AttemptId) -> AttemptReport:
        rng = self._rng
        if rng.random() < 0.2:
            id = AttemptId(rng.choice((id.job, *TEXTS)), self._number(), self._number())
        return AttemptReport(
            id,
            rng.choice(tuple(Phase)),
            self._number(),
            self._number(),
            self._number(),
            rng.choice((None, *Ending)),
            rng.choice((None, 0, 1, 255, self._number())),
            self._text() if rng.random() < 0.3 else "",
            self._number(),
            rng.choice((None, 0, 50, 100, self._number())),
            self._number(),
        )

    def _facts(self) -> MachineFacts:
        """Mostly in range: what is out of range is refused, and tries nothing more."""
        rng = self._rng
        wild = rng.random() < 0.4
        count = rng.choice((0, 1, 2, 4, 8, 62, 63, 64, 500) if wild else (0, 1, 2, 3, 4, 8, 62))
        return MachineFacts(
            devices=tuple(self._device(index, wild) for index in range(count)),
            cpu_milli=self._number() if wild else rng.choice((0, 1, 64_000, 10**9)),
            memory_bytes=self._number() if wild else rng.choice((0, 1, 1 << 40, 1 << 47)),
            labels={rng.choice(("zone", "rack", *TEXTS)): self._text() for _ in range(rng.choice((0, 0, 1, 3)))},
            fake=rng.random() < 0.5,
            driver=self._text(),
            isolation=rng.choice(tuple(Isolation)),
            address=rng.choice(("", "10.0.0.9", "m1", self._text())),
            trouble=tuple(self._text() for _ in range(rng.choice((0, 0, 1, 30)))),
            limits_note=self._text(),
            manager_address=rng.choice(("", "10.0.0.9", self._text())),
        )

    def _device(self, index: int, wild: bool) -> Device:
        rng = self._rng
        slices = rng.choice(((), (), (MigSlices("1g.10gb", 7),), (MigSlices("7g.80gb", 1), MigSlices("2g.20gb", 3))))
        if not wild or rng.random() < 0.9:
            return Device(rng.choice(("A100", "H100")), rng.choice((0, 40_000, 80_000)), f"GPU-{index}", mig=slices)
        return Device(
            self._text(),
            self._number(),
            self._text(),
            rng.random() < 0.5,
            self._number(),
            self._number(),
            (MigSlices(self._text(), self._number(), rng.choice((None, self._number()))),),
            rng.random() < 0.5,
        )

    def _stamp(self) -> int:
        return self._rng.randrange(1, 1 << 40)

    def _text(self) -> str:
        return self._rng.choice(("a", "b", *TEXTS))

    def _number(self) -> int:
        return self._rng.choice(INTEGERS)

    def _integer(self) -> int:
        return self._rng.choice((*INTEGERS, self._rng.getrandbits(63)))

    # --------------------------------------------------------------------------------------------------------- damaged

    def _with_one_hostile_value(self, message: AgentMessage) -> bytes:
        tree = msgspec.msgpack.decode(encode(message))
        place, key = self._somewhere(tree)
        place[key] = self._rng.choice((self._number(), self._text(), self._rng.choice(OTHERS)))
        return msgspec.msgpack.encode(tree)

    def _somewhere(self, tree: Any) -> tuple[Any, Any]:
        """A place in a tree of dicts and lists, at any depth."""
        keys = list(tree) if isinstance(tree, dict) else list(range(len(tree)))
        key = self._rng.choice(keys)
        inner = tree[key]
        if isinstance(inner, dict | list) and inner and self._rng.random() < 0.8:
            return self._somewhere(inner)
        return tree, key

    def _damaged(self, data: bytes) -> bytes:
        rng, damaged = self._rng, bytearray(data)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(damaged) + 1)
            match rng.randrange(4):
                case 0 if at < len(damaged):
                    damaged[at] = rng.randrange(256)
                case 1:
                    damaged[at:at] = rng.randbytes(rng.choice((1, 4)))
                case 2:
                    del damaged[at : at + rng.choice((1, 4, 100))]
                case _:
                    damaged[at:at] = damaged[at : at + 16]
        return bytes(damaged)

    def _no_message(self) -> bytes:
        rng = self._rng
        return rng.choice(
            (
                b"",
                b"\xc0",
                rng.randbytes(rng.choice((1, 16, 300))),
                b"\x91" * rng.choice((900, 100_000)),
                b"\x83\xa4type\xa6report\xa7sent_ms\x01\xa1x" + b"\x81\x91" * 50_000,
                b"\x83\xa4type\xa6report\xa7sent_ms\x01\xa8attempts\xdd\xff\xff\xff\xff",
                b"\x83\xa4type\xa9log-piece\xa7request\x01\xa4data\xc6\xff\xff\xff\xff",
                b"\x83\xa4type\xa6report\xa7sent_ms\x01\xa8attempts\x91\x82\xa2id\x93\xa1\xff\x00\x01",
                b"\xdf\xff\xff\xff\xff",
            )
        )
