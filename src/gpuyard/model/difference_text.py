"""The sentences about what a change of the cluster would do: who starts, stops, moves, stays and waits.

Place in the flow: what-if ─Difference─▶ **these** ─▶ CLI and REST.
"""

from __future__ import annotations

from gpuyard.model.difference import Moved, NowWaiting, Started, Staying, Stopped
from gpuyard.model.text import list_text, reason_text, tasks_word, waiting_text


def started_text(entry: Started) -> str:
    when = " as soon as the place is free" if entry.promised else ""
    return f"starts {entry.tasks} {tasks_word(entry.tasks)} on {list_text(list(entry.nodes))}{when}"


def stopped_text(entry: Stopped) -> str:
    why = reason_text(entry.reason) if entry.reason else "it is cancelled"
    return f"stops {entry.tasks} {tasks_word(entry.tasks)} on {list_text(list(entry.nodes))}: {why}"


def moved_text(entry: Moved) -> str:
    route = f"from {list_text(list(entry.sources))} to {list_text(list(entry.nodes))}"
    if entry.sources == entry.nodes:
        route = f"to other GPUs of {list_text(list(entry.nodes))}"
    if entry.reason is None:
        return f"starts elsewhere: {entry.tasks} {tasks_word(entry.tasks)} {route}"
    return f"moves {entry.tasks} {tasks_word(entry.tasks)} {route}: {reason_text(entry.reason)}"


def staying_text(entry: Staying) -> str:
    which = "which would move" if entry.moves else "which would stop"
    return (
        f"keeps {entry.tasks} {tasks_word(entry.tasks)} on {list_text(list(entry.nodes))}, {which} without the change"
    )


def now_waiting_text(entry: NowWaiting) -> str:
    return f"waits{' for more tasks' if entry.more_tasks else ''}: {waiting_text(entry.reasons)}"
