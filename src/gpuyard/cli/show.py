"""Tables and pictures for the terminal. Readable without colour, because they are also piped and pasted.

Place in the flow: a command ─Plan, Snapshot─▶ **show** ─▶ the terminal. Imported only by commands that show something.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec.structs import replace
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gpuyard.model.jobs import Job, TaskState
from gpuyard.model.nodes import Node
from gpuyard.model.plan import Action, Bind, Evict, Move, Plan, Promise, Resize
from gpuyard.model.quantities import GPU, format_milli
from gpuyard.model.queues import Queue
from gpuyard.model.reasons import Reason
from gpuyard.model.snapshot import Snapshot
from gpuyard.model.text import printable, reason_text, waiting_text
from gpuyard.scheduler.resources import GPU_AT, Resources

PIPED_WIDTH: Final = 120
CELL: Final = 8
"""Characters of one GPU in the picture: eight of them and a short node name fit on eighty columns."""

HOLDING: Final = frozenset({TaskState.RUNNING, TaskState.FREEING, TaskState.STUCK})
_COLOURS: Final = ("cyan", "green", "magenta", "yellow", "blue", "red", "bright_cyan", "bright_green")
_VERBS: Final[dict[type, str]] = {Bind: "start", Promise: "promise", Evict: "evict", Move: "move", Resize: "resize"}


class Terminal(Console):
    """Shows text as it is; a closed pipe ends the program the same way for every command."""

    def __init__(self, width: int | None = None) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, width=width)

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def console() -> Console:
    """The terminal; wide enough when piped, and never with colour codes there."""
    terminal = Terminal()
    return terminal if terminal.is_terminal else Terminal(width=PIPED_WIDTH)


def table(*headings: str) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        made.add_column(heading, header_style="bold", overflow="fold")
    return made


# ------------------------------------------------------------------------------------------------------------- plans


def show_plan(out: Console, plan: Plan, snapshot: Snapshot) -> None:
    """What happens, what waits, each with its reason, and a line that sums it up."""
    begun = _begun(plan, snapshot)
    if plan.actions:
        out.print(_actions_table(plan.actions, {job.id: job.queue for job in snapshot.jobs}))
    if plan.actions and plan.waiting:
        out.print()
    if plan.waiting:
        out.print(_waiting_table(plan, begun))
    if plan.actions or plan.waiting:
        out.print()
    out.print(Text(_summary(plan, begun, snapshot)))


def _actions_table(actions: Iterable[Action], teams: dict[str, str]) -> Table:
    """One row per job, kind and new place: a gang of a hundred tasks is one decision to a person."""
    rows: dict[tuple[str, ...], list[Action]] = {}
    for action in actions:
        route = "" if isinstance(action, Evict) else _route(action)
        key = (_VERBS[type(action)], action.job, route, action.reason.token, action.reason.beneficiary)
        rows.setdefault(key, []).append(action)
    made = table("ACTION", "JOB", "TEAM", "TASKS", "WHERE", "WHY")
    for (verb, job, *_), same in rows.items():
        where = _listed(tuple(dict.fromkeys(map(_route, same))))
        why = reason_text(_together([action.reason for action in same]))
        cells = (verb, job, teams.get(job, ""), str(len(same)), f"{where}{_devices(same)}", why)
        made.add_row(*map(_shown, cells))
    return made


def _together(reasons: list[Reason]) -> Reason:
    """The reasons of tasks that go for one cause, as one: as things stood before, and short by all of them."""
    return replace(reasons[0], shortfall=sum(reason.shortfall for reason in dict.fromkeys(reasons)))


def _shown(words: str) -> Text:
    return Text(printable(words))


def _route(action: Action) -> str:
    match action:
        case Move():
            return f"{action.source} → {action.node}"
        case Resize():
            return "in place"
        case _:
            return action.node


def _devices(actions: list[Action]) -> str:
    shares = [share for action in actions if not isinstance(action, Evict) for share in action.shares]
    devices = sorted({share.device for share in shares})
    return f" GPU {_ranges(devices)}" if devices else ""


def _ranges(numbers: list[int]) -> str:
    """`[0, 1, 2, 5]` → `0-2,5`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def _begun(plan: Plan, snapshot: Snapshot) -> set[str]:
    """Jobs that hold or get a place: if they wait, it is for more tasks."""
    getting = {action.job for action in plan.actions if isinstance(action, Bind | Promise)}
    return getting | {job.id for job in snapshot.jobs if not _waits(job)}


def _waiting_table(plan: Plan, begun: set[str]) -> Table:
    made = table("WAITS", "TEAM", "WHY")
    for entry in plan.waiting:
        names = tuple(f"{job} (more tasks)" if job in begun else job for job in entry.jobs)
        made.add_row(*map(_shown, (_listed(names), entry.queue, waiting_text(entry.reasons))))
    return made


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:4])
    return f"{shown} and {len(names) - 4} more" if len(names) > 4 else shown


def _summary(plan: Plan, begun: set[str], snapshot: Snapshot) -> str:
    waiting = [job in begun for entry in plan.waiting for job in entry.jobs]
    going = _going(plan, snapshot)
    said = (
        (_count(plan, Bind), "starts", "start"),
        (_count(plan, Promise), "gets a place that is being freed", "get a place that is being freed"),
        (_count(plan, Move), "moves", "move"),
        (going.count("shrinks"), "gives up tasks", "give up tasks"),
        (going.count("gives way"), "gives way", "give way"),
        (going.count("stops"), "is stopped", "are stopped"),
        (waiting.count(True), "waits for more tasks", "wait for more tasks"),
        (waiting.count(False), "waits", "wait"),
    )
    parts = [f"{count} {_jobs(count)} {one if count == 1 else many}" for count, one, many in said if count]
    return ", ".join(parts) + "." if parts else "Nothing to do: no job waits."


def _count(plan: Plan, kind: type[Action]) -> int:
    return len({action.job for action in plan.actions if isinstance(action, kind)})


def _going(plan: Plan, snapshot: Snapshot) -> list[str]:
    """For each job that loses tasks: whether it runs on with fewer, gives way to another, or just stops."""
    leaving: dict[str, list[Evict]] = {}
    for action in plan.actions:
        if isinstance(action, Evict):
            leaving.setdefault(action.job, []).append(action)
    running = {job.id: sum(task.state is TaskState.RUNNING for task in job.tasks) for job in snapshot.jobs}
    return [
        "shrinks" if len(evicted) < running[job] else "gives way" if evicted[0].reason.beneficiary else "stops"
        for job, evicted in leaving.items()
    ]


def _jobs(count: int) -> str:
    return "job" if count == 1 else "jobs"


# ------------------------------------------------------------------------------------------------------------ cluster


def show_cluster(out: Console, snapshot: Snapshot) -> None:
    """The cluster as a picture: a row per node, a column per GPU, and in it who holds the GPU."""
    holders = _holders(snapshot.jobs)
    styles = {job.id: _COLOURS[at % len(_COLOURS)] for at, job in enumerate(snapshot.jobs)}
    width = max((len(node.devices) for node in snapshot.nodes), default=0)
    picture = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("NODE", *(f"GPU {index}" for index in range(width))):
        picture.add_column(heading, header_style="bold", no_wrap=True)
    for node in snapshot.nodes:
        cells = [_cell(node, index, holders.get((node.name, index), []), styles) for index in range(len(node.devices))]
        picture.add_row(Text(node.name), *cells)
    out.print(picture)


def _holders(jobs: Iterable[Job]) -> dict[tuple[str, int], list[str]]:
    """Who is on each device, by node and index."""
    holders: dict[tuple[str, int], list[str]] = {}
    for job in jobs:
        for task in job.tasks:
            if task.state in HOLDING:
                for device in sorted({share.device for share in task.shares}):
                    holders.setdefault((task.node, device), []).append(job.id)
    return holders


def _cell(node: Node, device: int, holders: list[str], styles: dict[str, str]) -> Text:
    if not holders:
        return Text("·" if node.devices[device].healthy else "broken", style="dim")
    more = f"+{len(holders) - 1}" if len(holders) > 1 else ""
    name = holders[0][: CELL - len(more)]
    return Text(name + more, style=styles[holders[0]])


# ------------------------------------------------------------------------------------------------------------- queues


def show_queues(out: Console, snapshot: Snapshot) -> None:
    """The tree of queues: what each is owed, holds, has borrowed, and how many of its jobs wait."""
    held = held_milli(snapshot)
    children: dict[str | None, list[Queue]] = {}
    for queue in snapshot.queues:
        children.setdefault(queue.parent, []).append(queue)
    made = table("QUEUE", "OWED", "HELD", "BORROWED", "LIMIT", "WAITING")
    for queue, depth in _in_order(children, None, 0):
        share = queue.share(GPU)
        below = _below(queue.name, children)
        holds = sum(held.get(name, 0) for name in below)
        borrowed = max(0, holds - share.quota) if share.quota is not None else 0
        waits = sum(_waits(job) for job in snapshot.jobs if job.queue in below)
        cells = (_gpus(share.quota), format_milli(holds), format_milli(borrowed), _gpus(share.limit), str(waits))
        made.add_row(Text("  " * depth + queue.name), *map(Text, cells))
    out.print(made)


def held_milli(snapshot: Snapshot) -> dict[str, int]:
    """GPUs each leaf queue holds, in thousandths."""
    resources = Resources(snapshot.queues, snapshot.nodes)
    nodes = {node.name: node for node in snapshot.nodes}
    held: dict[str, int] = {}
    for job in snapshot.jobs:
        for task in job.tasks:
            if task.state in HOLDING:
                counted = resources.of_task(task.request, task.shares, nodes[task.node])[GPU_AT]
                held[job.queue] = held.get(job.queue, 0) + counted
    return held


def _in_order(children: dict[str | None, list[Queue]], parent: str | None, depth: int) -> list[tuple[Queue, int]]:
    listed = []
    for queue in children.get(parent, []):
        listed += [(queue, depth), *_in_order(children, queue.name, depth + 1)]
    return listed


def _below(name: str, children: dict[str | None, list[Queue]]) -> set[str]:
    return {name, *(queue.name for queue, _ in _in_order(children, name, 0))}


def _waits(job: Job) -> bool:
    return all(task.state not in HOLDING for task in job.tasks)


def _gpus(amount: int | None) -> str:
    return "unlimited" if amount is None else format_milli(amount)


def free_gpus(snapshot: Snapshot) -> tuple[int, int]:
    """How many sound GPUs nobody touches, and how many GPUs there are."""
    holders = _holders(snapshot.jobs)
    devices = [
        device.healthy and (node.name, index) not in holders
        for node in snapshot.nodes
        for index, device in enumerate(node.devices)
    ]
    return sum(devices), len(devices)
