"""The formats of cluster, job, change, scenario and teams files and of jobs to submit, declared once.

Place in the flow: tree ─Spot─▶ shape ─**format**─▶ nodes, queues, jobs. `gpuyard schema` prints these declarations as
JSON Schema, so the published schema cannot differ from what the readers accept. Everything optional defaults to None
here; what None stands for is said in the description and decided by the reader of that part.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from gpuyard.files.durations import DURATION_PATTERN
from gpuyard.model.jobs import Sharing
from gpuyard.model.queues import AffinityScope
from gpuyard.model.recurrence import Missed, Overlap
from gpuyard.model.work import OnNodeLost
from gpuyard.policies.policy import Policy

NAME_PATTERN: Final = r"^[^\s/\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]{1,253}$"
TAINT_PATTERN: Final = r"^[^\s=:]+(=[^\s=:]*)?(:[^\s=:]+)?$"
MIG_PATTERN: Final = r"^[1-7]g\.[0-9]{1,4}gb(\+[a-z.]+)?$"
PERCENT_PATTERN: Final = r"^[0-9]{1,9}(\.[0-9]{1,4})?%$"

ENV_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,252}$"

PATTERN_WORDS: Final = {
    NAME_PATTERN: "a name without blanks, slashes or invisible characters, at most 253 long",
    TAINT_PATTERN: "a taint written as key or key=value, with :EFFECT if it has one",
    MIG_PATTERN: "a MIG profile such as 1g.10gb",
    PERCENT_PATTERN: "a percentage such as 40% or 12.5%",
    ENV_PATTERN: "the name of a variable: letters, digits and underscores",
    DURATION_PATTERN: "a duration such as 90s, 10m or 1h30m",
}
"""How an error message calls a text of that form."""

# The patterns are checked by `shape.py` and only published here: msgspec 0.22 can crash at exit where a Meta of its
# own holds a pattern (msgspec issue 717).
Name = Annotated[str, Meta(extra_json_schema={"pattern": NAME_PATTERN})]
Duration = Annotated[str, Meta(extra_json_schema={"pattern": DURATION_PATTERN}, examples=["90s", "10m", "1h30m"])]
MigProfile = Annotated[str, Meta(extra_json_schema={"pattern": MIG_PATTERN}, examples=["1g.10gb"])]
Taint = Annotated[str, Meta(extra_json_schema={"pattern": TAINT_PATTERN}, examples=["dedicated=infra"])]
Percent = Annotated[str, Meta(extra_json_schema={"pattern": PERCENT_PATTERN}, examples=["40%", "12.5%"])]
EnvName = Annotated[str, Meta(extra_json_schema={"pattern": ENV_PATTERN}, examples=["EPOCHS"])]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Weight = Annotated[int, Meta(ge=1, le=1_000_000)]
PercentNumber = Annotated[int, Meta(ge=0, le=100)]
Amount = int | float | str
"""A number, exactly as written; memory also with a unit. The reader of the field converts it."""


def says(description: str, *examples: object) -> Meta:
    """What a field means, in the published schema."""
    return Meta(description=description, examples=list(examples) or None)


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What all parts of a file have in common."""


# ---------------------------------------------------------------------------------------------------------- nodes


class NodeFields(Fields):
    """What a node is like."""

    gpus: Annotated[Count | None, says("GPUs on the node; 8 unless given.")] = None
    model: Annotated[Name | None, says("Model of its GPUs; `gpu` unless given.", "H100")] = None
    memory: Annotated[Amount | None, says("Memory of each GPU; 80Gi unless given.", "80Gi", 81920)] = None
    cpu: Annotated[Amount | None, says("CPU cores; 128 unless given.", 128)] = None
    ram: Annotated[Amount | None, says("Host memory; 1Ti unless given.", "1Ti")] = None
    max_tasks: Annotated[Count | None, says("Tasks at once; 110 unless given.")] = None
    labels: Annotated[dict[str, str] | None, says("Labels, e.g. its rack.", {"rack": "r1"})] = None
    taints: Annotated[
        list[Taint] | None,
        says(
            "Marks that keep jobs away unless they tolerate them; with the effect `PreferNoSchedule` only as long as "
            "another node will do.",
            ["dedicated=infra", "dedicated=infra:NoExecute"],
        ),
    ] = None
    nvlink: Annotated[
        list[list[Count]] | None,
        says("GPUs that reach each other directly; all of them unless given.", [[0, 1], [2, 3]]),
    ] = None
    numa: Annotated[list[list[Count]] | None, says("GPUs that share a NUMA node.")] = None
    mig: Annotated[
        dict[MigProfile, Positive] | list[dict[MigProfile, Positive]] | None,
        says(
            "Slices each GPU is cut into, or a list with one entry per GPU ({} for one that stays whole).",
            {"1g.10gb": 7},
        ),
    ] = None
    unhealthy: Annotated[list[Count] | None, says("GPUs that are broken, by index from 0.")] = None
    cordoned: Annotated[bool | None, says("True: takes no new task; what runs there stays.")] = None
    ready: Annotated[bool | None, says("False: the node is lost.")] = None
    other: Annotated[dict[Name, Count] | None, says("Any further resource.", {"nic": 2})] = None


class NodeSpec(NodeFields, kw_only=True):
    """A node, or several alike: `name: a100-[1-4]` stands for four."""

    name: Annotated[Name, says("Its name, with ranges if it stands for several.", "a100-[1-4]")]


NodesSpec = Positive | list[NodeSpec] | dict[Name, NodeFields | Count | None]
"""A count, a list, or a map from names to what they are like (a bare number is its GPUs)."""


class ClusterSpec(NodeFields):
    """The nodes; the other fields here hold for every node that does not say otherwise."""

    nodes: Annotated[NodesSpec | None, says("A count (node-1, node-2, ...), a list or a map; 1 if absent.")] = None


# --------------------------------------------------------------------------------------------------------- queues


class RationSpec(Fields):
    """What a queue is owed and allowed of one resource. `unlimited` is a value for both."""

    quota: Annotated[Amount | None, says("What it is owed; as much as it asks for unless given.")] = None
    limit: Annotated[Amount | None, says("What it may hold at most; unlimited unless given.")] = None
    weight: Annotated[Amount | None, says("Its part of what is left over; 1 unless given.")] = None
    priority: Annotated[int | None, says("Who gets what is left over of it first; the queue's own unless given.")] = (
        None
    )


Ration = RationSpec | Amount


class QueueFields(Fields):
    """What a queue is owed and allowed; `quota`, `limit` and `weight` are about GPUs."""

    quota: Annotated[Amount | None, says("GPUs it is owed; 0 unless given, for a parent the sum of its children.")] = (
        None
    )
    limit: Annotated[Amount | None, says("GPUs it may hold at most; unlimited unless given.")] = None
    weight: Annotated[Amount | None, says("Its part of what is left over; 1 unless given.")] = None
    priority: Annotated[int | None, says("Who is served first; 100 unless given.")] = None
    parent: Annotated[Name | None, says("The queue above it, where it is not nested under `children`.")] = None
    cpu: Annotated[Ration | None, says("CPU cores; not rationed unless given.")] = None
    memory: Annotated[Ration | None, says("Host memory; not rationed unless given.")] = None
    models: Annotated[dict[Name, Ration] | None, says("GPUs of one model.", {"H100": 4})] = None
    other: Annotated[dict[Name, Ration] | None, says("Any further resource, in whole units.")] = None
    reclaim_min_runtime: Annotated[Duration | None, says("Jobs younger are not reclaimed.")] = None
    preempt_min_runtime: Annotated[Duration | None, says("Jobs younger are not preempted.")] = None
    disruption_budget: Annotated[
        Count | None, says("Tasks of its jobs that one cycle may move to make room; no bound unless given.")
    ] = None
    overcommit: Annotated[bool | None, says("True: the quotas of its children may add up to more than its own.")] = None
    affinity_scope: Annotated[
        AffinityScope | None,
        says(
            "Which jobs `near`, `apart` and `even` of its jobs are about: those of their own `queue`, of the `subtree` "
            "below this queue, or of the whole `cluster`. As the queue above says; `queue` where none does.",
            "subtree",
        ),
    ] = None


class QueueSpec(QueueFields):
    """A queue: `quota`, `limit` and `weight` are about GPUs; only queues without children hold jobs."""

    children: Annotated[dict[Name, QueueSpec | Amount | None] | None, says("The queues below it.")] = None
    used: Annotated[
        Percent | None,
        says("Past use, of all GPUs; for a parent the sum of its children unless given. It lowers its part.", "40%"),
    ] = None


QueuesSpec = dict[Name, QueueSpec | Amount | None]


# ----------------------------------------------------------------------------------------------------------- jobs


class LabelCondition(Fields):
    """A condition on a label beyond equality."""

    not_: Annotated[str | list[str] | None, says("Values it must not have.")] = msgspec.field(default=None, name="not")
    exists: Annotated[bool | None, says("True: the label must be there; false: it must not.")] = None
    above: Annotated[int | None, says("Its value must be a whole number above this.")] = None
    below: Annotated[int | None, says("Its value must be a whole number below this.")] = None


Selector = dict[str, str | list[str] | LabelCondition]
"""Label → a value, a list of values that will do, or a condition."""


class NeighbourSpec(Fields, kw_only=True):
    """The tasks to be near to, or apart from."""

    labels: Annotated[Selector, says("Their labels, written like a selector.", {"app": "web"})]
    level: Annotated[
        str | None, says("The node label that draws the domain; `hostname`, the node itself, unless given.")
    ] = None
    weight: Annotated[
        Weight | None,
        says(
            "Makes it a preference: so much for each such task, against other preferences. Without it the rule binds."
        ),
    ] = None


class EvenSpec(NeighbourSpec, kw_only=True):
    """The tasks to be spread evenly over domains."""

    max_skew: Annotated[
        Positive | None, says("How many more of them a domain may have than the emptiest; 1 unless given.")
    ] = None
    min_domains: Annotated[
        Positive | None, says("With fewer domains than this, the emptiest counts as having none; 1 unless given.")
    ] = None
    honour_selector: Annotated[
        bool | None, says("False: nodes its selector leaves out make domains, too; true unless given.")
    ] = None
    honour_taints: Annotated[
        bool | None, says("True: nodes whose taints keep it away make no domains; false unless given.")
    ] = None


class PreferenceSpec(Fields, kw_only=True):
    """Nodes to be preferred."""

    selector: Annotated[Selector, says("Labels of such a node.", {"disk": "ssd"})]
    weight: Annotated[Weight | None, says("How much it counts against other preferences; 1 unless given.")] = None


class TopologySpec(Fields):
    """Keep the group inside one domain of a level."""

    required: Annotated[str | None, says("This level, or it does not start.")] = None
    preferred: Annotated[str | None, says("This level, if it can be had.")] = None
    name: Annotated[Name | None, says("Which topology; the only one unless given.")] = None


class RequestFields(Fields):
    """What each task asks for, all on one node."""

    gpus: Annotated[
        Amount | None,
        says("Whole GPUs, a part below 1, or 0 for none; 1 unless given.", 8, 0.5, 0),
    ] = None
    devices: Annotated[Positive | None, says("Of how many GPUs it takes that part; 1 unless given.")] = None
    gpu_memory: Annotated[Amount | None, says("Memory of one GPU, instead of `gpus`.", "4Gi")] = None
    mig: Annotated[dict[MigProfile, Positive] | None, says("MIG slices, instead of `gpus`.")] = None
    sharing: Annotated[
        Sharing | None, says("How a part is shared; exclusive for whole GPUs, time-sliced for parts.")
    ] = None
    cpu: Annotated[Amount | None, says("CPU cores; 0 unless given.")] = None
    ram: Annotated[Amount | None, says("Host memory; 0 unless given.", "64Gi")] = None
    other: Annotated[dict[Name, Count] | None, says("Any further resource.")] = None
    model: Annotated[Name | list[Name] | None, says("GPU models that will do; any unless given.")] = None
    selector: Annotated[Selector | None, says("Labels its node must have.", {"zone": ["a", "b"]})] = None
    affinity: Annotated[list[Selector] | None, says("Alternatives, one of which must hold besides the selector.")] = (
        None
    )
    tolerations: Annotated[
        list[Taint] | None, says("Taints it accepts; with an effect only those that have it, `*` all.")
    ] = None
    near: Annotated[
        NeighbourSpec | list[NeighbourSpec] | None, says("Only with these tasks; with a weight, rather.")
    ] = None
    apart: Annotated[
        NeighbourSpec | list[NeighbourSpec] | None, says("Never with these tasks; with a weight, rather not.")
    ] = None
    even: Annotated[
        EvenSpec | list[EvenSpec] | None,
        says("Only where these tasks stay evenly spread over domains; with a weight, rather where there are fewer."),
    ] = None
    prefer: Annotated[
        PreferenceSpec | list[PreferenceSpec] | None, says("Nodes it would rather have, of those that fit.")
    ] = None


class GroupSpec(RequestFields, kw_only=True):
    """A role of a job, or a group of roles. What it does not ask for itself it takes from the job."""

    name: Annotated[Name, says("Its name, once per job.")]
    tasks: Annotated[Positive | None, says("Its tasks; as many as `gang`, or 1.")] = None
    labels: Annotated[dict[str, str] | None, says("Labels of its tasks, besides those of the job.")] = None
    gang: Annotated[Count | None, says("How many start together or not at all; all of them unless given.")] = None
    topology: Annotated[TopologySpec | None, says("Keep it together.")] = None
    groups: Annotated[list[GroupSpec] | None, says("The groups inside it, instead of tasks.")] = None
    min_groups: Annotated[Positive | None, says("How many of these must start; all unless given.")] = None


class JobFields(RequestFields):
    """What a job asks of the scheduler, the same in every file."""

    team: Annotated[Name | None, says("The queue it belongs to; the only one unless given.")] = None
    queue: Annotated[Name | None, says("Another word for `team`.")] = None
    tasks: Annotated[Positive | None, says("Its tasks; as many as `gang`, or 1. With `nodes`: on each node.")] = None
    nodes: Annotated[
        Positive | None, says("So many nodes, each with `tasks` tasks; the whole job lies on just these.", 2)
    ] = None
    gang: Annotated[
        Count | None,
        says("How many start together or not at all; all unless given. Fewer makes the job elastic."),
    ] = None
    preemptible: Annotated[bool | None, says("False: nobody may take its place; true unless given.")] = None
    labels: Annotated[dict[str, str] | None, says("What `near`, `apart` and `even` of tasks look at.")] = None
    topology: Annotated[TopologySpec | None, says("Keep the whole job together.")] = None
    groups: Annotated[list[GroupSpec] | None, says("Its roles, instead of `tasks` and `gang`.")] = None
    min_groups: Annotated[Positive | None, says("How many of these must start; all unless given.")] = None
    spread: Annotated[bool | None, says("True: lie on many nodes rather than on few.")] = None
    run_limit: Annotated[Duration | None, says("It is stopped after that.")] = None
    estimate: Annotated[Duration | None, says("How long it is thought to run.")] = None
    restart: Annotated[
        Duration | None, says("What starting it again costs, besides the work since it was last saved; 0s.")
    ] = None
    preemption_delay: Annotated[Duration | None, says("How long it waits before it makes others yield.")] = None
    staleness_grace: Annotated[Duration | None, says("How long its gang may be incomplete.")] = None
    movable: Annotated[bool | None, says("False: it is not moved to make room; true unless given.")] = None
    checkpointable: Annotated[
        bool | None, says("True: it may be moved even with `preemptible: false`; false unless given.")
    ] = None
    disruption_budget: Annotated[
        Count | None, says("Tasks of it that one cycle may move to make room; all unless given.")
    ] = None


class LastEvictionSpec(Fields, kw_only=True):
    """Why and for whom a job last had to give way."""

    reason: Annotated[str, says("A reason token.", "Reclaimed")]
    beneficiary: Annotated[Name | None, says("The job that got the place.")] = None
    subject: Annotated[str | None, says("The queue or node it was about.")] = None
    rule: Annotated[bool | None, says("True: its own rule about other tasks kept the beneficiary away.")] = None


class JobSpec(JobFields, kw_only=True):
    """A job."""

    job: Annotated[Name, says("Its name, once per file.")]
    priority: Annotated[int | None, says("Order in its queue, and who may preempt; 50 unless given.")] = None
    age: Annotated[Duration | None, says("How long ago it was submitted; just now, in file order.")] = None
    last_checkpoint: Annotated[Duration | None, says("How long ago it last saved its work.")] = None
    stale_for: Annotated[Duration | None, says("How long its gang has been incomplete.")] = None
    last_evicted: Annotated[Duration | None, says("How long ago it was last evicted.")] = None
    last_eviction: Annotated[
        str | LastEvictionSpec | None, says("Why it was last evicted: a reason token, or more.", "Reclaimed")
    ] = None


class RunningJobSpec(JobSpec, kw_only=True):
    """A job that holds its place."""

    on: Annotated[
        Name | list[Name] | dict[Name, Positive] | None,
        says(
            "Its node, one node per task, or tasks per node; first fit unless given. "
            "Tasks that a list or map does not cover still wait.",
            "node-1",
            ["node-1", "node-2"],
            {"node-1": 2},
        ),
    ] = None
    devices_on: Annotated[
        list[Count | list[Count]] | None,
        says(
            "Indices of the GPUs it holds, or one list per task; the lowest free unless given.",
            [0, 1],
            [[0], [1]],
        ),
    ] = None
    started: Annotated[Duration | None, says("How long ago it started; when submitted unless given.")] = None
    freeing: Annotated[bool | None, says("True: it is ending and its place will soon be free.")] = None
    nobodys: Annotated[
        bool | None,
        says("True: it is of no team. What it holds is not shared out, and it never gives way; false unless given."),
    ] = None


# ----------------------------------------------------------------------------------------------------------- work


class PriorityWord(enum.StrEnum):
    """Words for priorities; any number will do."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"
    URGENT = "urgent"


class NoticeSignal(enum.StrEnum):
    """Signals a job can be given notice by; those that end it at once are not among them."""

    TERM = "TERM"
    INT = "INT"
    HUP = "HUP"
    USR1 = "USR1"
    USR2 = "USR2"
    CONT = "CONT"


CommandSpec = str | list[str]
"""The words of a command, or one text for /bin/sh -c."""

Reference = Name | Count
"""The id of a job, which looks like a number."""


class WorkSpec(JobFields, kw_only=True):
    """A job to submit: what it runs, what it asks for, how it is treated."""

    command: Annotated[
        CommandSpec,
        says("What it runs: a list of words, or one text for /bin/sh -c.", ["python", "train.py"], "python train.py"),
    ]
    name: Annotated[Name | None, says("What people call it; the first word of its command unless given.")] = None
    env: Annotated[dict[EnvName, str | int | float] | None, says("Variables of the command.", {"EPOCHS": "3"})] = None
    workdir: Annotated[
        str | None, says("Where it runs: a whole path; a private directory of the job unless given.", "/data/run")
    ] = None
    priority: Annotated[
        int | PriorityWord | None,
        says("Order in its queue, and who may preempt: low 25, normal 50, high 75, urgent 100, or a number.", "high"),
    ] = None
    array: Annotated[
        str | Count | None,
        says("Many jobs from this one, and how many run at once.", "0-9%4", "1,3,5-9:2%2"),
    ] = None
    after: Annotated[
        Reference | list[Reference] | None, says("Jobs that must be over before it starts, however they ended.")
    ] = None
    afterok: Annotated[
        Reference | list[Reference] | None, says("Jobs that must have succeeded; should one fail, this one fails, too.")
    ] = None
    retries: Annotated[Count | None, says("How often it is started again after it failed by itself; 0.")] = None
    on_node_lost: Annotated[
        OnNodeLost | None, says("What becomes of it should its machine be lost; restart-after-lease unless given.")
    ] = None
    grace: Annotated[Duration | None, says("From the notice that it must stop to the end; 30s unless given.")] = None
    notice_signal: Annotated[
        NoticeSignal | None, says("The signal by which it gets notice; TERM unless given.", "USR1")
    ] = None
    checkpoint: Annotated[
        CommandSpec | None, says("A command that saves its work, run at notice; it must end within the grace.")
    ] = None
    hold: Annotated[bool | None, says("True: it does not start until it is released.")] = None
    slurm_env: Annotated[
        bool | None,
        says("True: its tasks also get SLURM_JOB_ID, SLURM_PROCID and the like, for programs that want them."),
    ] = None


class ScheduleFileSpec(Fields, kw_only=True):
    """A job that comes again: when, what, and what about times that cannot be kept."""

    cron: Annotated[
        str,
        says("When: minute, hour, day of month, month, day of week; or a word such as @daily.", "0 3 * * *", "@daily"),
    ]
    job: Annotated[WorkSpec, says("What is submitted at each planned time: a job file.", {"command": "make report"})]
    time_zone: Annotated[
        str | None, says("Whose clocks and days are meant: an IANA name; UTC unless given.", "Europe/Berlin")
    ] = None
    overlap: Annotated[
        Overlap | None,
        says("While an earlier run is not over: skip the time, queue the run behind it, or replace it; skip."),
    ] = None
    missed: Annotated[
        Missed | None,
        says("Times that passed while no manager ran: skip them, or run once for all of them; run-once."),
    ] = None
    missed_limit: Annotated[Duration | None, says("How late such a run may be; 1d unless given.")] = None
    paused: Annotated[bool | None, says("True: it runs nothing until it is resumed; as it is unless given.")] = None


# ---------------------------------------------------------------------------------------------------------- files


class ClusterFileSpec(Fields):
    """A cluster: its nodes, its queues, what runs and what waits."""

    cluster: Annotated[ClusterSpec | None, says("The nodes, in short.", {"nodes": 4, "gpus": 8})] = None
    nodes: Annotated[NodesSpec | None, says("The nodes, one by one; instead of `cluster`.")] = None
    topologies: Annotated[
        dict[Name, list[str]] | None,
        says("Named levels (node labels), widest first.", {"default": ["zone", "rack"]}),
    ] = None
    queues: Annotated[
        QueuesSpec | None,
        says(
            "Who is owed what; a bare number is the quota. Without it there is one queue, `default`.",
            {"vision": {"quota": 4, "limit": 8}, "speech": 4},
        ),
    ] = None
    running: Annotated[list[RunningJobSpec] | None, says("Jobs that hold a place.")] = None
    pending: Annotated[list[JobSpec] | None, says("Jobs that wait, oldest first.")] = None
    moves_last_hour: Annotated[
        Count | None, says("Tasks that were moved to make room in the last hour; 0 unless given.")
    ] = None
    policy: Annotated[Policy | None, says("How the cluster is run; the shipped default unless given.")] = None


class JobListSpec(Fields, kw_only=True):
    """Several jobs to plan."""

    jobs: Annotated[list[JobSpec], Meta(description="The jobs, oldest first.", min_length=1)]


class QueueChangeSpec(QueueFields):
    """Another value for a queue that exists, or a new queue. What an existing one is not given stays as it is."""

    new: Annotated[bool | None, says("True: a new queue at the top; one that names a new `parent` needs no word.")] = (
        None
    )


class NodeChangesSpec(Fields):
    """Nodes that go and come. Names may hold ranges."""

    drain: Annotated[
        list[Name] | None, says("Nodes that take nothing new, and that what runs there must leave: [a100-1].")
    ] = None
    remove: Annotated[list[Name] | None, says("Nodes that are there no more: [a100-3].")] = None
    add: Annotated[
        list[NodeSpec] | dict[Name, NodeFields | Count | None] | None,
        says("New nodes, as in a cluster file: a list, or a map from names.", {"h100-[1-2]": {"model": "H100"}}),
    ] = None


class ChangeFileSpec(Fields):
    """A change of a cluster, for `gpuyard what-if`."""

    queues: Annotated[
        dict[Name, QueueChangeSpec | Amount | None] | None,
        says("Other quotas, limits and so on; a bare number is the quota.", {"vision": {"quota": 8}}),
    ] = None
    nodes: Annotated[NodeChangesSpec | None, says("Nodes that go and come: drain, remove, add.")] = None
    jobs: Annotated[list[JobSpec] | None, says("New jobs, oldest first.")] = None
    cancel: Annotated[list[Name] | None, says("Jobs that are taken away: [resnet].")] = None


# ---------------------------------------------------------------------------------------------------------- teams


class MemberRole(enum.StrEnum):
    """What somebody is in a team."""

    LEAD = "lead"
    MEMBER = "member"
    VIEWER = "viewer"


IdleLimit = Annotated[
    Duration | None,
    says("A job that holds GPUs unused for so long is warned, and after as long again may be reclaimed; 0s: never."),
]
IdlePercent = Annotated[PercentNumber | None, says("Use of its GPUs below this counts as unused; 5 unless given.")]
UnixUser = Annotated[Name | None, says("The account all its jobs run as; unless given, each user has a number.")]
Members = Annotated[dict[Name, MemberRole] | None, says("Who is what in it.", {"ann": "lead", "bob": "member"})]


class TeamSpec(QueueFields):
    """A queue of the tree; those without children are teams."""

    children: Annotated[dict[Name, TeamSpec | Amount | None] | None, says("The queues below it.")] = None
    idle_limit: IdleLimit = None
    idle_percent: IdlePercent = None
    unix_user: UnixUser = None
    members: Members = None


class TeamsFileSpec(Fields, kw_only=True):
    """The whole tree of teams, as it is to be."""

    queues: Annotated[
        dict[Name, TeamSpec | Amount | None],
        says("Who is owed what; a bare number is the quota.", {"vision": {"quota": 4, "limit": 8}, "speech": 4}),
    ]


class TeamChangeSpec(QueueChangeSpec):
    """Another value for a team that exists, or a new team. What an existing one is not given stays as it is."""

    idle_limit: IdleLimit = None
    idle_percent: IdlePercent = None
    unix_user: UnixUser = None
    members: Members = None


class TeamChangesFileSpec(Fields, kw_only=True):
    """Some teams, changed or new; those that are not named stay as they are."""

    queues: Annotated[
        dict[Name, TeamChangeSpec | Amount | None],
        says("Other quotas, limits and so on; a bare number is the quota.", {"vision": {"quota": 8}}),
    ]
