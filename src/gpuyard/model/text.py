"""Every sentence gpuyard says about a decision, rendered from its data, once, for CLI, console, events and audit.

Place in the flow: Plan ─Action, Reason─▶ **text** ─sentence─▶ a person. Pure. Invariant: every Token has a sentence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from gpuyard.model.plan import Action, Bind, Evict, Move, Promise, Resize
from gpuyard.model.quantities import CPU, GPU, MEMORY, MILLI, format_amount
from gpuyard.model.reasons import CLUSTER, GPU_MEMORY, MIG_PREFIX, TASKS, Reason, Token

MAX_HOLDERS_SHOWN: Final = 5


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
    need = f"needs {_amount(reason, reason.need)}{place}, {_number(reason, reason.have)} can be had"
    holders = holders_text(reason)
    return f"{need}{'; ' + holders if holders else ''}: {ways_out}"


def _placed(reason: Reason) -> str:
    return f"the best place for it is {reason.subject}" if reason.subject else "there is room for it"


def _grew(reason: Reason) -> str:
    return "it is elastic and there is room for one more task"


def _queue_missing(reason: Reason) -> str:
    return f"{_subject(reason, 'queue', 'its queue')} does not exist: create it, or submit to another one"


def _gang_incomplete(reason: Reason) -> str:
    whose = _subject(reason, "group", "its gang")
    if reason.resource:
        return (
            f"{whose} starts together or not at all, and {_amount(reason, reason.need)} do not all fit: ask for fewer"
        )
    return f"{whose} needs {reason.need} tasks and has {reason.have}: submit the others, or lower its gang"


def _only(reason: Reason) -> str:
    return f"only {_number(reason, reason.have)}" if reason.have else "no"


def _over_limit(reason: Reason) -> str:
    whose = _subject(reason, "queue", "its queue")
    room = f"needs {_amount(reason, reason.need)}, and {whose} may take {_only(reason)} more"
    ways_out = (
        "raise the limit, or ask for fewer" if reason.never else "wait for jobs of that queue, or raise its limit"
    )
    return f"{room} under its limit: {ways_out}"


def _over_quota(reason: Reason) -> str:
    whose = _subject(reason, "queue", "its queue")
    room = f"needs {_amount(reason, reason.need)}, and {whose} is owed {_only(reason)} more"
    return f"{room}, while a job that cannot be preempted may not borrow: make it preemptible, or raise the quota"


def _no_matching_node(reason: Reason) -> str:
    if not reason.subject:
        return "every node is tainted, cordoned or lost: tolerate the taints, or open or add a node"
    change = "change its selector, tolerations or GPU model, or add such a node"
    return f"no node matches what it asks for ({reason.subject}): {change}"


def _too_large(reason: Reason) -> str:
    if reason.subject == CLUSTER:
        size = f"needs {_amount(reason, reason.need)} together, the whole cluster has {_number(reason, reason.have)}"
        return f"{size} it could use: waiting cannot help; ask for fewer, or add nodes"
    size = f"needs {_amount(reason, reason.need)} in one place, the largest has {_number(reason, reason.have)}"
    return f"{size}: waiting cannot help; split it into smaller tasks, or add a larger node"


def _not_enough(reason: Reason) -> str:
    return _lacking(reason, "", "wait for them, or ask for fewer")


def _fragmented(reason: Reason) -> str:
    if reason.resource == TASKS:
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
    return f"{what}: wait for other room"


def _delayed(reason: Reason) -> str:
    left = f" for another {duration_text(reason.need - reason.have)}" if reason.need > reason.have else ""
    return f"it makes nobody give way{left}, until its preemption delay is over: nothing to do"


def _for_whom(reason: Reason) -> str:
    return f' to job "{reason.beneficiary}"' if reason.beneficiary else " to a job"


def _reclaimed(reason: Reason) -> str:
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


def _moved(reason: Reason) -> str:
    for_whom = f' for job "{reason.beneficiary}"' if reason.beneficiary else ""
    return f"is moved to make room{for_whom}; it starts again there"


def _stale(reason: Reason) -> str:
    whose = _subject(reason, "group", "its gang")
    lost = f" ({reason.have} of {reason.need} tasks are left)" if reason.need else ""
    return f"{whose} has been incomplete for too long{lost}: it stops and starts again as a whole"


def _drained(reason: Reason) -> str:
    return f"{_subject(reason, 'node', 'its node')} is being drained or lost: it starts again elsewhere"


def _run_limit(reason: Reason) -> str:
    return "it has used up its run limit: submit it again with a longer one if it was not done"


_SENTENCES: Final[dict[Token, Callable[[Reason], str]]] = {
    Token.PLACED: _placed,
    Token.GREW: _grew,
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
