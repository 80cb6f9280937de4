"""Every error gpuyard raises on purpose, as one tree.

    GpuyardError
    ├── InputError          a file or a value a person wrote cannot be used (what, where, what to do)
    │   ├── QuantityError   a number is not one gpuyard can hold exactly
    │   └── QueueTreeError  the queues contradict each other; lists every problem at once
    ├── FakeGpuError        the fake GPUs cannot be shown: no compiler, a second writer, another version
    └── LedgerError         a change contradicts the books: a bug or a world that lies; nothing was changed

The text a person reads is rendered from the fields, once, here.
"""

from __future__ import annotations

import msgspec


class Where(msgspec.Struct, frozen=True):
    """A place in a file a person wrote. Lines and columns count from one; zero means the whole file."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


class GpuyardError(Exception):
    """Base of all errors raised on purpose; anything else that escapes is a bug."""


class InputError(GpuyardError):
    """Something a person wrote cannot be used: what is wrong, where, and what to do about it."""

    def __init__(self, what: str, *, where: Where | None = None, fix: str = "") -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        fix = f"\n  {self.fix}" if self.fix else ""
        return f"{place}{self.what}{fix}"


class QuantityError(InputError):
    """A number that gpuyard cannot hold exactly, or that makes no sense."""


class QueueTreeError(InputError):
    """A tree of queues that contradicts itself; `problems` holds every contradiction found."""

    def __init__(self, problems: tuple[InputError, ...]) -> None:
        self.problems = problems
        count = len(problems)
        super().__init__(f"{count} problem{'s' if count != 1 else ''} in the tree of queues")

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class LedgerError(GpuyardError):
    """A change that contradicts the books. The ledger is left as it was."""


class FakeGpuError(GpuyardError):
    """The fake GPUs cannot be built, published or read: what is wrong, and what to do about it."""

    def __init__(self, what: str, *, fix: str = "") -> None:
        self.what = what
        self.fix = fix
        super().__init__(what)

    def __str__(self) -> str:
        return f"{self.what}\n  {self.fix}" if self.fix else self.what
