"""What a task says, kept in pieces.

Place in the flow: the command ─pipe─▶ task ─▶ **log** ─pieces─▶ the agent's logs. Invariant: the pieces, one after the
other, are what was said last, without a gap.
"""

from __future__ import annotations

import os

from gpuyard.agent.supervisor.files import LOG_PREFIX, Spec


class Log:
    """What the task says, in pieces named by where they begin; the oldest go when there are too many."""

    def __init__(self, spec: Spec) -> None:
        self._piece_bytes = spec.log_piece_bytes
        self._pieces = spec.log_pieces
        self._begins: list[int] = []
        self._size = 0
        self._file = -1
        self._open()

    def _open(self) -> None:
        # The next piece first: on a full disk there is none, and what is said goes on in this one.
        piece = os.open(self._name(self._size), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        if self._file >= 0:
            os.close(self._file)
        self._file = piece
        self._begins.append(self._size)
        while len(self._begins) > self._pieces:
            os.unlink(self._name(self._begins.pop(0)))  # noqa: PTH108

    @staticmethod
    def _name(begin: int) -> str:
        return f"{LOG_PREFIX}{begin:020d}"

    def write(self, data: bytes) -> None:
        """A full disk loses what is said, never the task."""
        if self._size - self._begins[-1] >= self._piece_bytes:
            self._begin_next()
        try:
            self._size += os.write(self._file, data)
        except OSError:
            return

    def _begin_next(self) -> None:
        try:
            self._open()
        except OSError:
            return
