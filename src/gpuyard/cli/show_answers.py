"""Explanations and differences for the terminal, with small pictures of queues.

Place in the flow: a command ─Explanation, Difference─▶ **show_answers** ─▶ the terminal. The words are in `model.text`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from gpuyard.cli.show import table
from gpuyard.model.difference import Difference
from gpuyard.model.difference_text import moved_text, now_waiting_text, started_text, staying_text, stopped_text
from gpuyard.model.explanation import Explanation, QueueStanding, Standing
from gpuyard.model.text import (
    costs_text,
    eviction_text,
    forecast_text,
    placement_text,
    printable,
    queue_text,
    rank_text,
    reason_text,
    standing_text,
    stay_text,
    way_text,
)

BAR: Final = 24
"""Characters of the picture of a queue."""

OWED, BORROWED, UNUSED, ALLOWED = "█", "▒", "░", "·"
LEGEND: Final = (
    f"{OWED} held of what is owed   {BORROWED} borrowed   {UNUSED} owed and free   {ALLOWED} up to its limit"
)

_HOLDS: Final = frozenset({Standing.RUNNING, Standing.PLACED, Standing.MOVING, Standing.EVICTED, Standing.ENDING})


def _shown(words: str) -> Text:
    """Words of others as they are, and harmless."""
    return Text(printable(words))


# -------------------------------------------------------------------------------------------------------- explanations


def show_explanation(out: Console, explanation: Explanation, now_ms: int) -> None:
    """Where a job stands, and then only what there is to say about it."""
    out.print(_shown(f"{explanation.job} (team {explanation.queue}) {standing_text(explanation)}"), style="bold")
    show_body(out, explanation, now_ms)


def show_body(out: Console, explanation: Explanation, now_ms: int) -> None:
    """All but the first line."""
    for heading, lines in _sections(explanation, now_ms):
        show_section(out, heading, lines)
    if explanation.queues:
        _heading(out, "Its queues, in GPUs")
        out.print(Padding(_queues(explanation.queues), (0, 0, 0, 2), expand=False))
    if explanation.ways_out:
        out.print()
        out.print(_ways_out(explanation))


def _sections(explanation: Explanation, now_ms: int) -> Iterator[tuple[str, list[str]]]:
    """Headings with their lines, in the order a person asks."""
    yield "Where it is", [stay_text(stay, now_ms) for stay in explanation.stays]
    yield "Where it goes", [stay_text(stay, now_ms) for stay in explanation.gets]
    yield "Why", list(_why(explanation))
    yield "Whom that costs", [costs_text(explanation.costs)] if explanation.costs else []
    yield "What stands in its way", [reason_text(reason) for reason in explanation.blockers]
    yield "Before", [text for text in (eviction_text(explanation, now_ms),) if text]
    yield "Its turn", [rank_text(explanation.rank)] if explanation.rank else []
    yield "By itself", [forecast_text(explanation.starts, now_ms)] if explanation.starts else []


def _why(explanation: Explanation) -> Iterator[str]:
    said = set(explanation.blockers)
    yield from (reason_text(reason) for reason in explanation.why if reason not in said)
    if explanation.standing in _HOLDS or explanation.gets:
        yield f"nodes are chosen {placement_text(explanation.placement)}"


def show_section(out: Console, heading: str, lines: Iterable[str]) -> None:
    """A heading with its lines; nothing where there are none."""
    listed = list(lines)
    if listed:
        _heading(out, heading)
    for line in listed:
        out.print(Padding(_shown(line), (0, 0, 0, 2), expand=False))


def _heading(out: Console, heading: str) -> None:
    out.print()
    out.print(Text(heading, style="bold"))


def _queues(queues: tuple[QueueStanding, ...]) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    for queue in queues:
        made.add_row(_shown(queue.name), Text(queue_bar(queue)), _shown(queue_text(queue)))
    made.add_row("", "", Text(LEGEND, style="dim"))
    return made


def queue_bar(queue: QueueStanding) -> str:
    """`██████▒▒░░··`: what a queue holds, owes and may hold, to scale."""
    owed = queue.held_milli if queue.owed_milli is None else queue.owed_milli
    limit = max(queue.limit_milli or 0, owed, queue.held_milli)
    if not limit:
        return ""
    kept, reached = min(queue.held_milli, owed), max(queue.held_milli, owed)
    cells = [amount * BAR // limit for amount in (kept, reached, limit)]
    middle = BORROWED if queue.held_milli > owed else UNUSED
    return OWED * cells[0] + middle * (cells[1] - cells[0]) + ALLOWED * (cells[2] - cells[1])


def _ways_out(explanation: Explanation) -> Table:
    made = table("WAY OUT", "WHOM IT COSTS")
    for way in explanation.ways_out:
        made.add_row(_shown(way_text(way)), _shown(costs_text(way.costs)))
    return made


# --------------------------------------------------------------------------------------------------------- differences


def show_difference(out: Console, difference: Difference) -> None:
    """What would be different, job by job, and a line that sums it up."""
    if not difference.empty:
        made = table("JOB", "TEAM", "WHAT WOULD BE DIFFERENT")
        for job, queue, what in _rows(difference):
            made.add_row(*map(_shown, (job, queue, what)))
        out.print(made)
        out.print()
    out.print(Text(_summary(difference)))


def _rows(difference: Difference) -> Iterator[tuple[str, str, str]]:
    yield from ((entry.job, entry.queue, started_text(entry)) for entry in difference.started)
    yield from ((entry.job, entry.queue, stopped_text(entry)) for entry in difference.stopped)
    yield from ((entry.job, entry.queue, moved_text(entry)) for entry in difference.moved)
    yield from ((entry.job, entry.queue, staying_text(entry)) for entry in difference.staying)
    yield from ((entry.job, entry.queue, now_waiting_text(entry)) for entry in difference.waiting)


def _summary(difference: Difference) -> str:
    said = (
        (len(difference.started), "starts", "start"),
        (len(difference.stopped), "stops", "stop"),
        (len(difference.moved), "is elsewhere", "are elsewhere"),
        (len(difference.staying), "stays", "stay"),
        (len(difference.waiting), "waits", "wait"),
    )
    parts = [f"{count} {'job' if count == 1 else 'jobs'} {one if count == 1 else many}" for count, one, many in said]
    changed = ", ".join(part for part, (count, _, _) in zip(parts, said, strict=True) if count)
    running, waiting = difference.unaffected_running, difference.unaffected_waiting
    same = f"{running} running and {waiting} waiting jobs are not affected"
    return f"{changed}; {same}." if changed else f"Nothing would be different: {same}."
