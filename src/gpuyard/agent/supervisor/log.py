"""What a task says, kept in pieces.

Place in the flow: the command ─pipe─▶ task ─▶ **log** ─pieces─▶ the agent's logs. Invariant: the pieces, one after the
other, are what was said last, without a gap.
"""

from __future__ import annotations

import os

from gpuyard.agent.supervisor.files import LOG_PREFIX, MARK_EVERY_MS, MARKS_A_STEP, TIMES_PREFIX, Spec
from gpuyard.agent.supervisor.lease import wall_ms


def mark_covers_ms(number: int) -> int:
    """How long after the mark of that number in its piece there is no other."""
    return MARK_EVERY_MS << (number // MARKS_A_STEP)


def append(path: str, data: bytes) -> None:
    """What cannot be written is left out: the log itself matters more."""
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return
    try:
        os.write(file, data)
    except OSError:
        pass
    finally:
        os.close(file)


def drop(path: str) -> None:
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return


class Log:
    """What the task says, in pieces named by where they begin; the oldest go when there are too many."""

    def __init__(self, spec: Spec) -> None:
        self._piece_bytes = spec.log_piece_bytes
        self._pieces = spec.log_pieces
        self._begins: list[int] = []
        self._size = 0
        self._file = -1
        self._marks = 0
        self._marked_ms = 0
        self._open()

    def _open(self) -> None:
        # The next piece first: on a full disk there is none, and what is said goes on in this one.
        piece = os.open(self._name(self._size), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = piece
        self._begins.append(self._size)
        self._marks = 0
        while len(self._begins) > self._pieces:
            begin = self._begins.pop(0)
            drop(self._times(begin))
            os.unlink(self._name(begin))  # noqa: PTH108

    @staticmethod
    def _name(begin: int) -> str:
        return f"{LOG_PREFIX}{begin:020d}"

    @staticmethod
    def _times(begin: int) -> str:
        return f"{TIMES_PREFIX}{begin:020d}"

    def _mark(self, now_ms: int) -> None:
        """Note when what comes next is said: once a second, and less often the more notes a piece has."""
        if self._marks and abs(now_ms - self._marked_ms) < mark_covers_ms(self._marks - 1):
            return
        self._marks += 1
        self._marked_ms = now_ms
        append(self._times(self._begins[-1]), b"%d %d\n" % (now_ms, self._size))

    def write(self, data: bytes) -> None:
        """A full disk loses what is said, never the task."""
        if self._size - self._begins[-1] >= self._piece_bytes:
            self._begin_next()
        if data:
            self._mark(wall_ms())
        try:
            self._size += os.write(self._file, data)
        except OSError:
            return

    def _begin_next(self) -> None:
        try:
            self._open()
        except OSError:
            return
