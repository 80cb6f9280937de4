"""Every sentence gpuyard says about a decision, rendered from its data, once, for CLI, console, events and audit.

Place in the flow: Plan ─Action, Reason─▶ **text** ─sentence─▶ a person. Pure. Invariant: every Token has a sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from gpuyard.model.explanation import (
    Cost,
    Edit,
    Effect,
    Explanation,
    Field,
    Forecast,
    QueueStanding,
    Rank,
    Standing,
    Stay,
    Unknown,
    WayOut,
)
from gpuyard.model.jobs import TaskState
from gpuyard.model.plan import Action, Bind, Evict, Move, Promise, Resize
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, format_amount
from gpuyard.model.reasons import CLUSTER, GPU_MEMORY, MIG_PREFIX, NODES, RULE, TASKS, Reason, Token

MAX_HOLDERS_SHOWN: Final = 5
MAX_NAMES_SHOWN: Final = 4
LONGEST_DELAY_MS: Final = 3_650 * 24 * 3_600_000
"""A preemption delay beyond it is none: such a job never makes others give way."""


def printable(text: str) -> str:
    """Words of others, so that they cannot steer a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)


def amount_text(resource: str, amount: int) -> str:
    """`8 GPUs`, `0.5 GPU`, `4 H100 GPUs`, `16 cores`, `64Gi of memory`, `2 slices 1g.10gb`, `2 nic`."""
    number = format_amount(resource, amount)
    if resource == GPU:
        return f"{number} {_plural('GPU', amount)}"
    if resource.startswith(f"{GPU}/"):
        return f"{number} {resource.removeprefix(f'{GPU}/')} {_plural('GPU', amount)}"
    if resource == CPU:
        return f"{number} {_plural('core', amount)}"
    if resource == MEMORY:
        return f"{number} of memory"
    if resource == GPU_MEMORY:
        return f"{number} MiB of GPU memory"
    if resource.startswith(MIG_PREFIX):
        return f"{number} {_plural('slice', amount * MILLI)} {resource.removeprefix(MIG_PREFIX)}"
    return f"{number} {resource}"


def duration_text(span_ms: int) -> str:
    """The two largest units: `3h`, `2d 4h`, `45s`; below a second, `a moment`."""
    seconds = span_ms // 1000
    units = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
    parts: list[str] = []
    for name, size in units:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{name}" if count else "")
    return " ".join(part for part in parts[:2] if part) or "a moment"


def _plural(noun: str, amount_milli: int) -> str:
    return noun if 0 < amount_milli <= MILLI else f"{noun}s"


# ---------------------------------------------------------------------------------------------------------- reasons


def reason_text(reason: Reason) -> str:
    """One reason as a sentence without its full stop: what is the case, with numbers, and what would help."""
    return _SENTENCES[reason.token](reason)


def waiting_text(reasons: tuple[Reason, ...]) -> str:
    """Why a job waits, all reasons in one line."""
    return "; ".join(reason_text(reason) for reason in reasons) or "waits for its turn"


def holders_text(reason: Reason) -> str:
    """`vision holds 20, speech 12`."""
    shown = reason.holders[:MAX_HOLDERS_SHOWN]
    amounts = [f"{holder.queue} {_number(reason, holder.amount)}" for holder in shown]
    if not amounts:
        return ""
    more = len(reason.holders) - len(shown)
    rest = f" and {more} more" if more else ""
    return f"{shown[0].queue} holds {_number(reason, shown[0].amount)}" + "".join(f", {a}" for a in amounts[1:]) + rest


def _number(reason: Reason, amount: int) -> str:
    return format_amount(reason.resource or GPU, amount)


def _amount(reason: Reason, amount: int) -> str:
    return amount_text(reason.resource or GPU, amount)


def _subject(reason: Reason, kind: str, otherwise: str) -> str:
    return f'{kind} "{reason.subject}"' if reason.subject else otherwise


def _lacking(reason: Reason, place: str, ways_out: str) -> str:
    """Something is needed, less is there; who has it; what to do."""
    need = f"needs {_amount(reason, reason.need)}{place}, {_obtainable(reason)}"
    holders = holders_text(reason)
    return f"{need}{'; ' + holders if holders else ''}: {ways_out}"


def _obtainable(reason: Reason) -> str:
    """`3 can be had`, or `79 can be had (0 free, 79 lent to others)`."""
    free, lent, both = reason.have, _number(reason, reason.reclaimable), reason.have + reason.reclaimable
    if reason.reclaimable and both < reason.need:
        return f"{_number(reason, both)} can be had ({_number(reason, free)} free, {lent} lent to others)"
    crowded = f"; {lent} that others have borrowed would not make room for all of it" if reason.reclaimable else ""
    return f"{_number(reason, free)} can be had{crowded}"


def _placed(reason: Reason) -> str:
    return f"the best place for it is {reason.subject}" if reason.subject else "there is room for it"


def _grew(reason: Reason) -> str:
    return "it is elastic and there is room for one more task"


def _queue_missing(reason: Reason) -> str:
    if not reason.subject:
        return "it is of no queue, and is not placed here: submit it to one"
    return f'queue "{reason.subject}" does not exist: create it, or submit to another one'


def _planning_failed(reason: Reason) -> str:
    return f"planning this job failed, and it is left out until its cause is gone: {reason.subject}; report it"


def _gang_incomplete(reason: Reason) -> str:
    whose = _subject(reason, "group", "its gang")
    if reason.resource:
        together = f"{whose} starts together or not at all"
        return f"{together}, and {_amount(reason, reason.need)} do not all fit: ask for fewer"
    return f"{whose} needs {reason.need} tasks and has {reason.have}: submit the others, or lower its gang"


def _only(reason: Reason) -> str:
    return f"only {_number(reason, reason.have)}" if reason.have else "no"


def _over_limit(reason: Reason) -> str:
    whose = _subject(reason, "queue", "its queue")
    room = f"needs {_amount(reason, reason.need)}, and {whose} may take {_only(reason)} more"
    wait = "wait for jobs of that queue, or raise its limit"
    return f"{room} under its limit: {'raise the limit, or ask for fewer' if reason.never else wait}"


def _over_quota(reason: Reason) -> str:
    whose = _subject(reason, "queue", "its queue")
    room = f"needs {_amount(reason, reason.need)}, and {whose} is owed {_only(reason)} more"
    return f"{room}, while a job that cannot be preempted may not borrow: make it preemptible, or raise the quota"


def _no_matching_node(reason: Reason) -> str:
    if reason.resource == NODES:
        return _forbidden_nodes(reason)
    if not reason.subject:
        return "every node is tainted, cordoned or lost: tolerate the taints, or open or add a node"
    change = "change its selector, tolerations or GPU model, or add such a node"
    return f"no node matches what it asks for ({reason.subject}): {change}"


def _forbidden_nodes(reason: Reason) -> str:
    """Of nodes it could use otherwise, rules between tasks forbid some or all."""
    rules = f"rules about other tasks{f' ({reason.subject})' if reason.subject else ''}"
    nodes = f"{reason.need} node{'' if reason.need == 1 else 's'}"
    if reason.never:
        why = "which have no label that the rules are about"
        none = f"none of {nodes}" if reason.need else "no node"
        return f"{rules} leave it {none}, {why}: label nodes, or change the rules"
    if not reason.need:
        left = "no node, or too few"
    else:
        left = f"only {reason.have} of {nodes}" if reason.have else f"none of {nodes}"
    if reason.carriers:
        others = " and ".join(f'job "{carrier}"' for carrier in reason.carriers)
        gives = "which gives way to jobs within the quota of their queue"
        return f"{rules} leave it {left}: a rule of {others} keeps it away, {gives}; wait, or ask for more quota"
    return f"{rules} leave it {left}: wait for those tasks, or change the rules"


def _too_large(reason: Reason) -> str:
    if reason.resource == NODES:
        nodes = f"{_nodes_needed(reason)}, the cluster has {reason.have}"
        return f"{nodes}: waiting cannot help; ask for less, or add nodes"
    if reason.subject == CLUSTER:
        size = f"needs {_amount(reason, reason.need)} together, the whole cluster has {_number(reason, reason.have)}"
        return f"{size} it could use: waiting cannot help; ask for fewer, or add nodes"
    size = f"needs {_amount(reason, reason.need)} in one place, the largest has {_number(reason, reason.have)}"
    return f"{size}: waiting cannot help; split it into smaller tasks, or add a larger node"


def _not_enough(reason: Reason) -> str:
    return _lacking(reason, "", "wait for them, or ask for fewer")


def _nodes_needed(reason: Reason) -> str:
    return f"needs {reason.need} node{'' if reason.need == 1 else 's'} with room for {reason.subject} each"


def _fragmented(reason: Reason) -> str:
    if reason.resource == NODES:
        need = f"{_nodes_needed(reason)}, {reason.have} can be had"
    elif reason.resource == TASKS:
        need = f"places for {reason.need} tasks at once are needed, {reason.have} can be had"
    else:
        beside = "beside its GPUs" if reason.subject == GPU else "in one place"
        need = f"needs {_amount(reason, reason.need)} {beside}, where at most {_number(reason, reason.have)} can be had"
    holders = holders_text(reason)
    return f"{need}{'; ' + holders if holders else ''}: wait, or use smaller tasks"


def _no_domain(reason: Reason) -> str:
    level = _subject(reason, "level", "the required level")
    ways_out = "prefer the level instead of requiring it, or ask for fewer"
    never = "waiting cannot help; " if reason.never else ""
    if reason.have >= reason.need:
        return f"no single place at {level} has room for all of it: {never}{ways_out}"
    need = f"needs {_amount(reason, reason.need)} in one place at {level}"
    return f"{need}, where at most {_number(reason, reason.have)} can be had: {never}{ways_out}"


def _place_freeing(reason: Reason) -> str:
    where = f" on {reason.subject}" if reason.subject else ""
    return f"its place{where} is being freed: it starts as soon as that is done"


def _reserved(reason: Reason) -> str:
    owner = reason.beneficiary or reason.subject
    what = f"the free room is kept for {owner}" if owner else "the free room is kept for a job ahead of it"
    # A place that was promised is nobody else's; on a start that is kept others may fill in until then.
    shorter = f", or give it a run_limit that ends before {owner} starts" if owner and not reason.subject else ""
    return f"{what}: wait for other room{shorter}"


def _delayed(reason: Reason) -> str:
    left_ms = reason.need - reason.have
    if left_ms > LONGEST_DELAY_MS:
        return "it makes nobody give way, by its own wish: wait until there is room"
    left = f" for another {duration_text(left_ms)}" if left_ms > 0 else ""
    return f"it makes nobody give way{left}, until its preemption delay is over: nothing to do"


def _for_whom(reason: Reason) -> str:
    return f' to job "{reason.beneficiary}"' if reason.beneficiary else " to a job"


def _reclaimed(reason: Reason) -> str:
    if reason.resource == RULE:
        return f"gives way{_for_whom(reason)} of another queue, which is within its quota: {_KEPT_AWAY}"
    whose = _subject(reason, "queue", "its queue")
    held = f"{whose} has borrowed it"
    if reason.have > reason.need:
        held = f"{whose} holds {_amount(reason, reason.have)} and is owed {_number(reason, reason.need)}"
    return f"gives way{_for_whom(reason)} of another queue: {held}{_shortfall(reason)}"


def _shortfall(reason: Reason) -> str:
    if not reason.shortfall:
        return ""
    missing = amount_text(_without_model(reason.resource), reason.shortfall)
    return f"; it goes whole, which leaves the queue {missing} below what it is owed"


def _without_model(resource: str) -> str:
    """What a queue is short of is counted in GPUs of any model."""
    return GPU if not resource or resource.startswith(f"{GPU}/") else resource


def _preempted(reason: Reason) -> str:
    whose = _subject(reason, "queue", "the same queue")
    return f"gives way{_for_whom(reason)}, which has a higher priority in {whose}"


_KEPT_AWAY: Final = "a rule about other tasks kept that job off its node"


def _moved(reason: Reason) -> str:
    if reason.resource == RULE:
        return f"is moved{_for_whom(reason)} of another queue: {_KEPT_AWAY}; it starts again there"
    why = f'make room for job "{reason.beneficiary}"' if reason.beneficiary else "leave its node free for larger jobs"
    return f"is moved to {why}; it starts again there"


def _stale(reason: Reason) -> str:
    whose = _subject(reason, "group", "its gang")
    lost = f" ({reason.have} of {reason.need} tasks are left)" if reason.need else ""
    return f"{whose} has been incomplete for too long{lost}: it stops and starts again as a whole"


def _drained(reason: Reason) -> str:
    return f"{_subject(reason, 'node', 'its node')} is being drained or lost: it starts again where there is room"


def _run_limit(reason: Reason) -> str:
    return "it has used up its run limit: submit it again with a longer one if it was not done"


_SENTENCES: Final[dict[Token, Callable[[Reason], str]]] = {
    Token.PLACED: _placed,
    Token.GREW: _grew,
    Token.PLANNING_FAILED: _planning_failed,
    Token.QUEUE_MISSING: _queue_missing,
    Token.GANG_INCOMPLETE: _gang_incomplete,
    Token.OVER_LIMIT: _over_limit,
    Token.OVER_QUOTA: _over_quota,
    Token.NO_MATCHING_NODE: _no_matching_node,
    Token.TOO_LARGE: _too_large,
    Token.NOT_ENOUGH: _not_enough,
    Token.FRAGMENTED: _fragmented,
    Token.NO_DOMAIN: _no_domain,
    Token.PLACE_FREEING: _place_freeing,
    Token.RESERVED: _reserved,
    Token.DELAYED: _delayed,
    Token.RECLAIMED: _reclaimed,
    Token.PREEMPTED: _preempted,
    Token.MOVED: _moved,
    Token.STALE: _stale,
    Token.DRAINED: _drained,
    Token.RUN_LIMIT: _run_limit,
}


# ---------------------------------------------------------------------------------------------------------- actions


def action_text(action: Action) -> str:
    """One action as a sentence without its full stop."""
    match action:
        case Bind():
            return f"{action.task} starts on {_place(action)}: {reason_text(action.reason)}"
        case Promise():
            return f"{action.task} gets {_place(action)} as soon as it is free"
        case Evict():
            return f"{action.task} leaves {action.node}: {reason_text(action.reason)}"
        case Move():
            return f"{action.task} moves from {action.source} to {_place(action)}: {reason_text(action.reason)}"
        case Resize():
            return f"{action.task} is resized: {reason_text(action.reason)}"


def _place(action: Bind | Promise | Move) -> str:
    devices = sorted({share.device for share in action.shares})
    if not devices:
        return action.node
    return f"{action.node} ({_plural('GPU', len(devices) * MILLI)} {', '.join(map(str, devices))})"


# ----------------------------------------------------------------------------------------------------- explanations


_STANDINGS: Final[dict[Standing, str]] = {
    Standing.RUNNING: "runs",
    Standing.STARTING: "starts with the next plan",
    Standing.PLACED: "has its place and is starting there",
    Standing.PROMISED: "has a place that is being freed, and starts there as soon as that is done",
    Standing.WAITING: "waits; waiting can help",
    Standing.NEVER: "waits, and waiting alone cannot help: it, its queue or the cluster must change",
    Standing.EVICTED: "must give its place away",
    Standing.MOVING: "runs, and moves to another place",
    Standing.ENDING: "is ending; its place is soon free",
    Standing.FINISHED: "is over; submit it again to run it again",
    Standing.GATED: "is held back by its owner, who has to release it first",
    Standing.BLOCKED: "waits for other jobs to be over first",
}


def standing_text(explanation: Explanation) -> str:
    """Where a job stands, as the end of a sentence that begins with its name."""
    if explanation.standing is Standing.BLOCKED and explanation.at_once:
        return f"waits for its turn in its array: {explanation.at_once} of it run at once"
    return _STANDINGS[explanation.standing]


def explanation_text(explanation: Explanation) -> str:
    """The shortest answer: where a job stands, and the first thing in its way."""
    said = f"{explanation.job} {standing_text(explanation)}"
    return f"{said}: {reason_text(explanation.blockers[0])}" if explanation.blockers else said


def rank_text(rank: Rank) -> str:
    """`3rd of 8 jobs of queue "ads" that want a place; before it: a, b`."""
    jobs, want = ("job", "wants") if rank.waiting == 1 else ("jobs", "want")
    place = f'{_ordinal(rank.position)} of {rank.waiting} {jobs} of queue "{rank.queue}"'
    ahead = f"; before it: {names_text(rank.ahead, rank.position - 1)}" if rank.ahead else ""
    return f"{place} that {want} a place{ahead}"


def queue_text(queue: QueueStanding) -> str:
    """`holds 10 of 8 GPUs owed (2 borrowed), limit 12, fair share 10, 4 more wanted`."""
    parts = [
        held_text(queue),
        f"limit {_milli(queue.limit_milli)}" if queue.limit_milli is not None else "",
        f"fair share {_milli(queue.fair_share_milli)}",
        f"{_milli(queue.asked_milli)} more wanted" if queue.asked_milli else "",
    ]
    return ", ".join(part for part in parts if part)


def held_text(queue: QueueStanding) -> str:
    """`holds 10 of 8 owed (2 borrowed)`."""
    return f"holds {_milli(queue.held_milli)} {_owed(queue)}"


def _owed(queue: QueueStanding) -> str:
    if queue.owed_milli is None:
        return "and is owed all it asks for"
    borrowed = queue.held_milli - queue.owed_milli
    return f"of {_milli(queue.owed_milli)} owed{f' ({_milli(borrowed)} borrowed)' if borrowed > 0 else ''}"


def stay_text(stay: Stay, now_ms: int) -> str:
    """`2 tasks on node-1 (GPUs 0, 1), for 3h`."""
    held = f"{stay.tasks} {tasks_word(stay.tasks)} on {stay.node}"
    gpus = f" ({_plural('GPU', len(stay.devices) * MILLI)} {', '.join(map(str, stay.devices))})" if stay.devices else ""
    since = f", for {duration_text(now_ms - stay.since_ms)}" if stay.since_ms else ""
    return f"{held}{gpus}{since}{_STATES.get(stay.state, '')}"


_STATES: Final[dict[TaskState, str]] = {
    TaskState.PROMISED: ", as soon as the place is free",
    TaskState.FREEING: ", ending",
    TaskState.STUCK: ", ending for too long",
}

_PLACEMENTS: Final = {
    "bin-pack": "the fullest node that has room",
    "spread": "the emptiest node that has room",
    "best-fit": "the node that is left with least",
    "fragmentation-gradient": "the node whose rest stays most useful",
    "topology": "nodes close to each other, the fullest first",
    "keep-whole-nodes-free": "the fullest node that has room, so that others stay whole",
}


def placement_text(placement: str) -> str:
    """The rule by which nodes are chosen."""
    return f"by {placement}: {_PLACEMENTS.get(placement, 'the node this policy likes best')}"


def eviction_text(explanation: Explanation, now_ms: int) -> str:
    """When and why a job was last evicted; empty where it was not."""
    at_ms, reason = explanation.last_evicted_at_ms, explanation.last_eviction
    if at_ms is None and reason is None:
        return ""
    when = f" {duration_text(now_ms - at_ms)} ago" if at_ms is not None else " before"
    return f"was evicted{when}{f': {reason_text(reason)}' if reason else ''}"


def forecast_text(forecast: Forecast, now_ms: int) -> str:
    if forecast.p50_ms is None:
        return f"when it starts by itself cannot be told: {_UNKNOWN[forecast.unknown or Unknown.NO_END]}"
    soon = f"starts by itself in about {duration_text(max(0, forecast.p50_ms - now_ms))}"
    if forecast.p90_ms is None:
        return f"{soon}, if others end when they are thought to"
    if forecast.p90_ms == forecast.p50_ms:
        return soon
    return f"{soon}, almost surely within {duration_text(max(0, forecast.p90_ms - now_ms))}"


_UNKNOWN: Final[dict[Unknown, str]] = {
    Unknown.NO_END: "nobody knows when what it waits for ends; run limits or estimates of the jobs ahead would tell",
    Unknown.TOO_FAR: "it lies further ahead than is looked",
}


# --------------------------------------------------------------------------------------------------------- ways out


def way_text(way: WayOut) -> str:
    """What to do, as a sentence without its full stop."""
    said = list_text([_EDITS[edit.field](edit) for edit in way.edits if edit.field is not Field.ENDS])
    ending = [edit.subject for edit in way.edits if edit.field is Field.ENDS]
    if ending:
        said = f"wait until {list_text(ending)} {'has' if len(ending) == 1 else 'have'} ended"
    return f"{said}; it then starts as soon as its place is free" if way.promised else said


def costs_text(costs: tuple[Cost, ...]) -> str:
    """Whom it costs: `nobody`, or `a must stop, b gives up 2 tasks, c and d wait instead`."""
    parts = []
    for effect, partly, one, many in (
        (Effect.EVICTED, False, "must stop", "must stop"),
        (Effect.EVICTED, True, "gives up {}", "give up {}"),
        (Effect.MOVED, False, "must move", "must move"),
        (Effect.MOVED, True, "must move {}", "must move {}"),
        (Effect.WAITS, False, "waits instead", "wait instead"),
        (Effect.WAITS, True, "gets {} fewer", "get {} fewer"),
    ):
        affected = [cost for cost in costs if (cost.effect, cost.partly) == (effect, partly)]
        if affected:
            tasks = sum(cost.tasks for cost in affected)
            said = (one if len(affected) == 1 else many).format(f"{tasks} {tasks_word(tasks)}")
            parts.append(f"{names_text(tuple(cost.job for cost in affected), len(affected))} {said}")
    return ", ".join(parts) or "nobody"


def _asks(edit: Edit) -> str:
    instead = format_amount(edit.resource, edit.before)
    return f"ask for {amount_text(edit.resource, edit.after)} a task{_in_group(edit)} instead of {instead}"


def _fewer(edit: Edit) -> str:
    return f"run it with {edit.after} {tasks_word(edit.after)}{_in_group(edit)} instead of {edit.before}"


def _fewer_nodes(edit: Edit) -> str:
    return f"run it on {edit.after} node{'' if edit.after == 1 else 's'} instead of {edit.before}"


def _gang(edit: Edit) -> str:
    together = f"let {edit.after} {tasks_word(edit.after)}{_in_group(edit)} start together instead of {edit.before}"
    return f"{together} (gang: {edit.after})"


def _other_model(edit: Edit) -> str:
    return f"accept GPUs of model {list_text(list(edit.models))}{_in_group(edit)}"


def _make_preemptible(edit: Edit) -> str:
    return "make it preemptible, so that it may borrow"


def _raise(edit: Edit) -> str:
    amounts = f"from {format_amount(edit.resource, edit.before)} to {amount_text(edit.resource, edit.after)}"
    return f'raise the {edit.field} of queue "{edit.subject}" {amounts}'


def _in_group(edit: Edit) -> str:
    return f" of group {edit.group}" if edit.group else ""


_EDITS: Final[dict[Field, Callable[[Edit], str]]] = {
    Field.ASKS: _asks,
    Field.TASKS: _fewer,
    Field.NODES: _fewer_nodes,
    Field.GANG: _gang,
    Field.MODEL: _other_model,
    Field.PREEMPTIBLE: _make_preemptible,
    Field.QUOTA: _raise,
    Field.LIMIT: _raise,
}


# ------------------------------------------------------------------------------------------------------------ words


def names_text(names: tuple[str, ...], count: int) -> str:
    """The first few names, and how many more there are."""
    shown = names[:MAX_NAMES_SHOWN]
    more = count - len(shown)
    return f"{', '.join(shown)} and {more} more" if more > 0 else list_text(list(shown))


def list_text(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last


def _ordinal(number: int) -> str:
    teen = 10 <= number % 100 <= 20
    return f"{number}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def tasks_word(count: int) -> str:
    return "task" if count == 1 else "tasks"


def _milli(amount_milli: int) -> str:
    return format_amount(GPU, amount_milli)
