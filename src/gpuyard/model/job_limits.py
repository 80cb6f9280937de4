"""Named limits of jobs and of what their tasks ask for, and the one check of each.

Place in the flow: files, REST bodies, schedules and Kubernetes objects ─jobs─▶ **job_limits** ─▶ state ─▶ scheduler.
Invariant: what a whole job of accepted values asks for, and the score of a node by its rules, fit a signed 64-bit
integer.
"""

from __future__ import annotations

from typing import Final

from gpuyard.model.jobs import (
    ANYWHERE,
    MAX_GROUP_DEPTH,
    MAX_TASKS_PER_JOB,
    DeviceShare,
    Job,
    LabelRule,
    Operator,
    Request,
    Task,
    TaskGroup,
    Where,
    is_number,
)
from gpuyard.model.limits import (
    MAX_DEVICE_MEMORY_MIB,
    MAX_NAME_CHARS,
    MAX_NODE_CPU_MILLI,
    MAX_NODE_MEMORY_BYTES,
    MAX_NODE_RESOURCES,
    MAX_NUMBER,
    MAX_OTHER_AMOUNT,
    MAX_PRIORITY,
    MAX_PROFILES_PER_DEVICE,
    durations_problem,
    labels_problem,
    number_problem,
    times_problem,
)
from gpuyard.model.nodes import MAX_DEVICES_PER_NODE
from gpuyard.model.quantities import MILLI, format_bytes

MAX_GPUS_PER_TASK: Final = 1_000_000
"""More than any node has: such a job is told that it can never start, and how many GPUs the largest node has."""
MAX_WEIGHT: Final = 1_000_000
"""Of one preference: with as many rules and tasks as there may be, the score of a node stays below 2^62."""
MAX_RULES: Final = 1_000
"""Of one kind in one request: alternatives, tolerations, models, preferences, rules about other tasks."""
MAX_RULE_VALUES: Final = 10_000
"""Of one rule, and of all alternatives of one request together."""


def job_problem(job: Job) -> str:
    """Return why the scheduler cannot count with this job; an empty text where it can."""
    return _form_problem(job) or group_problem(job.group) or _tasks_problem(job.tasks)


def _form_problem(job: Job) -> str:
    if len(job.tasks) > MAX_TASKS_PER_JOB:
        return f"it has {len(job.tasks)} tasks; a job has at most {MAX_TASKS_PER_JOB}"
    durations = (job.run_limit_ms, job.estimate_ms, job.restart_ms, job.preemption_delay_ms, job.staleness_grace_ms)
    times = (job.submitted_at_ms, job.checkpoint_at_ms, job.stale_since_ms, job.last_evicted_at_ms)
    return (
        number_problem("its priority", job.priority, MAX_PRIORITY, -MAX_PRIORITY)
        or number_problem("its disruption budget", job.disruption_budget)
        or durations_problem(durations)
        or times_problem(times)
        or labels_problem(job.labels)
        or ("the name of its queue is too long" if len(job.queue) > MAX_NAME_CHARS else "")
    )


def _tasks_problem(tasks: tuple[Task, ...]) -> str:
    """Tasks that ask for the same share their request, which is looked at once."""
    seen = None
    for task in tasks:
        if task.request is not seen:
            seen = task.request
            if problem := request_problem(seen):
                return problem
        if problem := _task_problem(task):
            return problem
    return ""


def _task_problem(task: Task) -> str:
    if task.started_at_ms or task.priority or task.labels or task.shares:
        return (
            times_problem((task.started_at_ms,))
            or number_problem("the priority of a task", task.priority, MAX_PRIORITY, -MAX_PRIORITY)
            or labels_problem(task.labels)
            or shares_problem(task.shares)
        )
    return ""


def shares_problem(shares: tuple[DeviceShare, ...]) -> str:
    """Return which share of a device no device has."""
    for share in shares:
        if not 0 <= share.device < MAX_DEVICES_PER_NODE and not share.mig:
            return f"it holds GPU {share.device}; a node has at most {MAX_DEVICES_PER_NODE}"
        in_range = 0 <= share.device <= MAX_NUMBER and len(share.mig) <= MAX_NAME_CHARS
        if not (in_range and 0 <= share.gpu_milli <= MILLI and 0 <= share.memory_mib <= MAX_DEVICE_MEMORY_MIB):
            return f"it holds {share.gpu_milli} thousandths and {share.memory_mib} MiB of one GPU"
    return ""


def group_problem(group: TaskGroup, depth: int = 1) -> str:
    """Return which bound of a group, or of a group inside it, is out of range."""
    if depth > MAX_GROUP_DEPTH:
        return f"its groups are nested more than {MAX_GROUP_DEPTH} deep"
    if len(group.children) > MAX_TASKS_PER_JOB:
        return f"it has {len(group.children)} groups; a job has at most {MAX_TASKS_PER_JOB}"
    if not 0 <= group.min_tasks <= MAX_TASKS_PER_JOB or not 0 <= (group.min_groups or 0) <= MAX_TASKS_PER_JOB:
        return f"the minimum of a group is out of range; the range is 0 to {MAX_TASKS_PER_JOB}"
    for child in group.children:
        if problem := group_problem(child, depth + 1):
            return problem
    return ""


def request_problem(request: Request) -> str:
    """Return which amount or rule of a request is out of range."""
    return (
        gpus_problem(request)
        or cpu_problem(request.cpu_milli)
        or memory_problem(request.memory_bytes)
        or other_problem(request.other)
        or where_problem(request.where)
    )


def gpus_problem(request: Request) -> str:
    """Return which amount of GPUs, shares, GPU memory or MIG slices is out of range."""
    if request.devices and not request.gpu_milli and not request.gpu_memory_mib:
        return "a task asks for a GPU, and for nothing of it"
    if len(request.mig) > MAX_PROFILES_PER_DEVICE:
        return f"a task asks for {len(request.mig)} MIG profiles; it may ask for {MAX_PROFILES_PER_DEVICE}"
    return (
        number_problem("the number of GPUs of a task", request.devices, MAX_GPUS_PER_TASK)
        or number_problem("the share of a GPU, in thousandths,", request.gpu_milli, MILLI)
        or number_problem("the GPU memory of a task, in MiB,", request.gpu_memory_mib, MAX_DEVICE_MEMORY_MIB)
        or _slices_problem(request.mig)
    )


def _slices_problem(mig: tuple[tuple[str, int], ...]) -> str:
    for profile, count in mig:
        if len(profile) > MAX_NAME_CHARS or not 1 <= count <= MAX_GPUS_PER_TASK:
            return f'the number of "{profile[:40]}" slices of a task is {count}; the range is 1 to {MAX_GPUS_PER_TASK}'
    return ""


def cpu_problem(cpu_milli: int) -> str:
    """Return whether a task asks for more CPU than any node may have."""
    return number_problem("the CPU of a task, in thousandths of a core,", cpu_milli, MAX_NODE_CPU_MILLI)


def memory_problem(memory_bytes: int) -> str:
    """Return whether a task asks for more host memory than any node may have."""
    if 0 <= memory_bytes <= MAX_NODE_MEMORY_BYTES:
        return ""
    return f"the memory of a task is {memory_bytes} bytes; the range is 0 to {format_bytes(MAX_NODE_MEMORY_BYTES)}"


def other_problem(other: tuple[tuple[str, int], ...]) -> str:
    """Return which named resource a task asks too much of."""
    if len(other) > MAX_NODE_RESOURCES:
        return f"a task asks for {len(other)} named resources; it may ask for {MAX_NODE_RESOURCES}"
    for name, amount in other:
        if problem := number_problem(f'the amount of "{name[:40]}"', amount, MAX_OTHER_AMOUNT, 1):
            return problem
    return ""


def where_problem(where: Where) -> str:
    """Return which rule about a task's node is out of range."""
    if where == ANYWHERE:
        return ""
    kinds = (where.any_of, where.tolerations, where.gpu_models, where.neighbours, where.spreads)
    soft = (where.preferences, where.soft_neighbours, where.soft_spreads)
    if any(len(rules) > MAX_RULES for rules in (*kinds, *soft)):
        return f"a task has more than {MAX_RULES} rules of one kind"
    for spread in where.spreads:
        if not (1 <= spread.max_skew <= MAX_NUMBER and 0 <= spread.min_domains <= MAX_NUMBER):
            return f"a rule allows a skew of {spread.max_skew}; the range is 1 to {MAX_NUMBER}"
    weights = [one.weight for rules in soft for one in rules]
    if any(abs(weight) > MAX_WEIGHT for weight in weights):
        return f"the weight of a preference is out of range; the range is up to {MAX_WEIGHT}"
    return _label_rules_problem(where)


def _label_rules_problem(where: Where) -> str:
    kinds = (where.neighbours, where.spreads, where.preferences, where.soft_neighbours, where.soft_spreads)
    rules = [rule for alternative in where.any_of for rule in alternative]
    rules += [rule for kind in kinds for one in kind for rule in one.rules]
    if len(rules) + sum(len(rule.values) for rule in rules) > MAX_RULE_VALUES:
        return f"the rules of a task name more than {MAX_RULE_VALUES} labels and values"
    return next((problem for rule in rules if (problem := label_rule_problem(rule))), "")


def label_rule_problem(rule: LabelRule) -> str:
    """Return whether a condition on a label compares with something that is not a number."""
    if rule.operator not in (Operator.GREATER, Operator.LESS):
        return ""
    if len(rule.values) == 1 and is_number(rule.values[0]):
        return ""
    return f'a rule compares the label "{rule.key[:40]}" with something that is not one 64-bit number'
