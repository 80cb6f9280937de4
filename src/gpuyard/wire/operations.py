"""Every operation of the REST API, once: the router, the access table, the OpenAPI file and the client are made of it.

An operation that is not here does not exist. `permission` None means that no credential is asked.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuyard.wire import pool, rest
from gpuyard.wire.access import Permission


class Parameter(msgspec.Struct, frozen=True):
    """A value in the query."""

    name: str
    type: type
    description: str
    default: object = None


class Operation(msgspec.Struct, frozen=True):
    """One verb on one path."""

    name: str
    method: str
    path: str
    summary: str
    permission: Permission | None
    answer: Any = None
    """The type of the answer; None: no body."""
    body: Any = None
    """The type of the request; `JOB_FILE` and its like for those that are read like files; one of `BYTE_BODIES` for
    those that their handler reads as bytes."""
    query: tuple[Parameter, ...] = ()
    status: int = 200
    media: str = "application/json"

    @property
    def changes(self) -> bool:
        return self.method not in ("GET", "HEAD")


JOB_FILE: Final = "job-file"
TEAMS_FILE: Final = "teams-file"
CHANGE_FILE: Final = "change-file"
SCHEDULE_FILE: Final = "schedule-file"
ARCHIVE: Final = "archive"
FORM: Final = "form"
BYTE_BODIES: Final = {ARCHIVE: "application/octet-stream", FORM: "application/x-www-form-urlencoded"}
"""By the kind they are sent as."""

LIMIT: Final = Parameter("limit", int, "How many at most; 1 to 1000.", 100)
CURSOR: Final = Parameter("cursor", str, "Where to go on: `next` of the page before.", "")
ALLOW_NEVER: Final = Parameter("allow_never", bool, "Take it even if it can never run here.", False)
DRY_RUN: Final = Parameter("dry_run", bool, "Only say what would happen.", False)
SINCE: Final = Parameter("since", str, "From then on: RFC 3339, or a duration ago such as 30d.", "")
UNTIL: Final = Parameter("until", str, "Until then.", "")

P = Permission
OPERATIONS: Final[tuple[Operation, ...]] = (
    Operation("livez", "GET", "/livez", "The service lives.", None),
    Operation("readyz", "GET", "/readyz", "The service can answer.", None),
    Operation("version", "GET", "/version", "What runs here.", None, rest.Version),
    Operation("metrics", "GET", "/metrics", "For Prometheus.", P.SCRAPE, str, media="text/plain"),
    Operation("openapi", "GET", "/v1/openapi.json", "This description.", P.SEE_CLUSTER, dict),
    Operation("status", "GET", "/v1/status", "The cluster in short.", P.SEE_CLUSTER, rest.Status),
    Operation("whoami", "GET", "/v1/whoami", "Whom the credential speaks for.", P.SEE_CLUSTER, rest.Whoami),
    # Jobs ------------------------------------------------------------------------------------------------------
    Operation(
        "list_jobs",
        "GET",
        "/v1/jobs",
        "Jobs, newest first.",
        P.SEE_JOBS,
        rest.Page[rest.JobObject],
        query=(
            LIMIT,
            CURSOR,
            Parameter("state", str, "States, with commas; `active` means all that are not over.", ""),
            Parameter("team", str, "Of one team.", ""),
            Parameter("user", str, "Of one user.", ""),
            Parameter("name", str, "Of that name.", ""),
            Parameter("label", str, "With these labels: k=v, with commas.", ""),
            Parameter("array", str, "Elements of one array.", ""),
            Parameter("estimate", bool, "Also when those that wait are thought to start.", True),
        ),
    ),
    Operation(
        "submit_job",
        "POST",
        "/v1/jobs",
        "Submit a job, or an array of jobs.",
        P.SUBMIT,
        rest.Submitted,
        JOB_FILE,
        (DRY_RUN, ALLOW_NEVER),
        status=201,
    ),
    Operation("get_job", "GET", "/v1/jobs/{id}", "One job.", P.SEE_JOBS, rest.JobDetail),
    Operation(
        "explain_job",
        "GET",
        "/v1/jobs/{id}/explanation",
        "Why it waits, what would let it start.",
        P.SEE_JOBS,
        rest.ExplanationObject,
    ),
    Operation(
        "read_logs",
        "GET",
        "/v1/jobs/{id}/logs",
        "What a task has written.",
        P.SEE_SECRETS,
        str,
        query=(
            Parameter("task", int, "Which task; 0 unless given.", 0),
            Parameter("attempt", int, "Which attempt; the newest unless given.", 0),
            Parameter("offset", int, "From which byte; negative: before the end.", 0),
            Parameter("limit", int, "At most so many bytes; 0: all there is, up to 64 MiB.", 0),
            Parameter("follow", bool, "Go on until the attempt ends.", False),
            Parameter("since", str, "What was written from then on: RFC 3339, or a duration ago such as 10m.", ""),
        ),
        media="text/plain",
    ),
    *(
        Operation(f"{verb}_job", "POST", f"/v1/jobs/{{id}}/{verb}", summary, P.STEER_JOBS, rest.JobObject)
        for verb, summary in {
            "cancel": "End it for good; politely if it runs.",
            "hold": "Keep it from starting.",
            "release": "Take the hold off.",
            "suspend": "Stop it politely and keep it from starting.",
            "resume": "Let a suspended job wait for its turn again.",
            "requeue": "Stop it politely and let it wait for its turn again.",
        }.items()
    ),
    Operation(
        "scale_job",
        "POST",
        "/v1/jobs/{id}/scale",
        "Other bounds for its tasks.",
        P.STEER_JOBS,
        rest.JobObject,
        rest.Scale,
    ),
    Operation("plan_job", "POST", "/v1/plan", "What would happen to a job.", P.SUBMIT, rest.PlanObject, JOB_FILE),
    Operation(
        "what_if", "POST", "/v1/what-if", "What a change would do.", P.RUN_NODES, rest.DifferenceObject, CHANGE_FILE
    ),
    # Recurring jobs --------------------------------------------------------------------------------------------
    Operation(
        "list_schedules",
        "GET",
        "/v1/schedules",
        "Jobs that come again, by team and name.",
        P.SEE_JOBS,
        rest.Page[rest.ScheduleObject],
        query=(
            LIMIT,
            CURSOR,
            Parameter("team", str, "Of one team.", ""),
            Parameter("owner", str, "Of one user.", ""),
        ),
    ),
    Operation(
        "get_schedule",
        "GET",
        "/v1/schedules/{team}/{name}",
        "One, with its last runs and next times.",
        P.SEE_JOBS,
        rest.ScheduleDetail,
    ),
    Operation(
        "set_schedule",
        "PUT",
        "/v1/schedules/{team}/{name}",
        "Make a schedule, or write it anew; whoever does owns it.",
        P.SUBMIT,
        rest.ScheduleDetail,
        SCHEDULE_FILE,
        (DRY_RUN, ALLOW_NEVER),
    ),
    Operation(
        "remove_schedule",
        "DELETE",
        "/v1/schedules/{team}/{name}",
        "Take a schedule away; its runs go on.",
        P.STEER_JOBS,
        status=204,
    ),
    *(
        Operation(
            f"{verb}_schedule",
            "POST",
            f"/v1/schedules/{{team}}/{{name}}/{verb}",
            summary,
            P.STEER_JOBS,
            rest.ScheduleDetail,
        )
        for verb, summary in {
            "pause": "Run nothing until it is resumed.",
            "resume": "Run again at its next time; also one that the manager has suspended.",
        }.items()
    ),
    Operation(
        "run_schedule",
        "POST",
        "/v1/schedules/{team}/{name}/run",
        "Run it now, beside what is planned.",
        P.STEER_JOBS,
        rest.Submitted,
        status=201,
    ),
    # Teams -----------------------------------------------------------------------------------------------------
    Operation("list_teams", "GET", "/v1/teams", "The tree of teams.", P.SEE_CLUSTER, rest.Page[rest.TeamObject]),
    Operation("get_team", "GET", "/v1/teams/{name}", "One team.", P.SEE_CLUSTER, rest.TeamObject),
    Operation(
        "set_teams",
        "PUT",
        "/v1/teams",
        "Write the whole tree anew.",
        P.SET_TEAMS,
        rest.TeamsChanged,
        TEAMS_FILE,
        (DRY_RUN,),
    ),
    Operation(
        "change_teams",
        "PATCH",
        "/v1/teams",
        "Change or add some teams; what is not named stays.",
        P.SET_TEAMS,
        rest.TeamsChanged,
        TEAMS_FILE,
        (DRY_RUN,),
    ),
    Operation(
        "remove_team",
        "DELETE",
        "/v1/teams/{name}",
        "Take a team away.",
        P.SET_TEAMS,
        rest.TeamsChanged,
        query=(DRY_RUN,),
    ),
    Operation(
        "set_member",
        "PUT",
        "/v1/teams/{name}/members/{user}",
        "Give somebody a role in a team.",
        P.SET_MEMBERS,
        rest.UserObject,
        rest.MemberChange,
    ),
    Operation(
        "remove_member",
        "DELETE",
        "/v1/teams/{name}/members/{user}",
        "Take somebody out of a team.",
        P.SET_MEMBERS,
        rest.UserObject,
    ),
    # Nodes -----------------------------------------------------------------------------------------------------
    Operation(
        "list_nodes",
        "GET",
        "/v1/nodes",
        "The machines.",
        P.SEE_CLUSTER,
        rest.Page[rest.NodeObject],
        query=(LIMIT, CURSOR),
    ),
    Operation("get_node", "GET", "/v1/nodes/{name}", "One machine.", P.SEE_CLUSTER, rest.NodeObject),
    *(
        Operation(
            f"{verb.replace('-', '_')}_node",
            "POST",
            f"/v1/nodes/{{name}}/{verb}",
            summary,
            P.RUN_NODES,
            rest.NodeObject,
        )
        for verb, summary in {
            "drain": "Nothing new starts there; what may be stopped is, politely.",
            "resume": "Take new work again.",
            "declare-lost": "It is gone for good: what ran there is restarted elsewhere at once.",
        }.items()
    ),
    Operation("change_node", "PATCH", "/v1/nodes/{name}", "Labels.", P.RUN_NODES, rest.NodeObject, rest.NodeChange),
    Operation("remove_node", "DELETE", "/v1/nodes/{name}", "Take a machine away.", P.RUN_NODES, status=204),
    Operation(
        "join_node", "POST", "/v1/nodes:join", "A machine joins.", P.JOIN, rest.Joined, rest.JoinRequest, status=201
    ),
    Operation(
        "list_devices",
        "GET",
        "/v1/devices",
        "The GPUs and who holds them.",
        P.SEE_CLUSTER,
        rest.Page[rest.DeviceObject],
        query=(LIMIT, CURSOR, Parameter("node", str, "Of one machine.", "")),
    ),
    # What happened ---------------------------------------------------------------------------------------------
    Operation(
        "list_events",
        "GET",
        "/v1/events",
        "What happened to jobs, newest first; with `watch` as server-sent events from now on, or from Last-Event-ID.",
        P.SEE_JOBS,
        rest.Page[rest.EventObject],
        query=(
            LIMIT,
            CURSOR,
            SINCE,
            Parameter("object", str, "About job/17, node/a, team/vision, schedule/vision/nightly.", ""),
            Parameter("kind", str, "Kinds, with commas.", ""),
            Parameter("watch", bool, "Stream.", False),
        ),
    ),
    Operation(
        "list_audit",
        "GET",
        "/v1/audit",
        "Every change and every decision, newest first.",
        P.READ_AUDIT,
        rest.Page[rest.EventObject],
        query=(
            LIMIT,
            CURSOR,
            SINCE,
            UNTIL,
            Parameter("object", str, "Of job/17, node/a, team/a, user/ann, schedule/a/nightly, data-job/a/train.", ""),
            Parameter("actor", str, "By whom.", ""),
        ),
    ),
    Operation(
        "usage",
        "GET",
        "/v1/usage",
        "GPU-hours.",
        P.SEE_JOBS,
        rest.Page[rest.UsageRow],
        query=(SINCE, UNTIL, Parameter("by", str, "team, user, job, day, with commas.", "team")),
    ),
    # People ----------------------------------------------------------------------------------------------------
    Operation("list_users", "GET", "/v1/users", "The users.", P.SET_USERS, rest.Page[rest.UserObject]),
    Operation(
        "set_user", "PUT", "/v1/users/{name}", "Make or change a user.", P.SET_USERS, rest.UserObject, rest.UserChange
    ),
    Operation("remove_user", "DELETE", "/v1/users/{name}", "Take a user and all tokens away.", P.SET_USERS, status=204),
    Operation(
        "list_tokens",
        "GET",
        "/v1/tokens",
        "One's tokens; for those who may, all.",
        P.OWN_TOKENS,
        rest.Page[rest.TokenObject],
    ),
    Operation(
        "create_token",
        "POST",
        "/v1/tokens",
        "A new token.",
        P.OWN_TOKENS,
        rest.CreatedToken,
        rest.TokenRequest,
        status=201,
    ),
    Operation("revoke_token", "DELETE", "/v1/tokens/{id}", "End a token.", P.OWN_TOKENS, status=204),
    # Somebody else's machines ----------------------------------------------------------------------------------
    Operation(
        "list_pool_machines",
        "GET",
        "/v1/pool/machines",
        "The machines of the pool.",
        P.SEE_POOL,
        rest.Page[pool.PoolMachine],
        query=(LIMIT, CURSOR),
    ),
    Operation(
        "set_pool_machine",
        "PUT",
        "/v1/pool/machines/{name}",
        "Add a machine to the pool, or say how many devices it has.",
        P.SET_POOL,
        pool.PoolMachine,
        pool.PoolMachineChange,
    ),
    Operation(
        "remove_pool_machine",
        "DELETE",
        "/v1/pool/machines/{name}",
        "Take a machine out of the pool.",
        P.SET_POOL,
        status=204,
    ),
    Operation(
        "list_pool_budgets",
        "GET",
        "/v1/pool/budgets",
        "What the teams of the pool are owed.",
        P.SEE_POOL,
        rest.Page[pool.PoolBudget],
        query=(LIMIT, CURSOR),
    ),
    Operation(
        "set_pool_budget",
        "PUT",
        "/v1/pool/budgets/{team}",
        "Say what a team is owed of one device type; a team is known once it has a budget.",
        P.SET_POOL,
        pool.PoolBudget,
        pool.PoolBudgetChange,
    ),
    Operation(
        "remove_pool_team",
        "DELETE",
        "/v1/pool/budgets/{team}",
        "Forget a team of the pool that has no jobs.",
        P.SET_POOL,
        status=204,
    ),
    Operation(
        "list_pool_jobs",
        "GET",
        "/v1/pool/jobs",
        "The jobs that hold a place in the pool, or are getting one.",
        P.SEE_POOL,
        rest.Page[pool.PoolJob],
        query=(LIMIT, CURSOR, Parameter("team", str, "Of one team.", "")),
    ),
    Operation(
        "provision_pool_job",
        "POST",
        "/v1/pool/provision",
        "Find a place for a job: a plan of steps to carry out and confirm.",
        P.USE_POOL,
        pool.PoolPlan,
        pool.PoolRequest,
        status=201,
    ),
    Operation(
        "quote_pool_job",
        "POST",
        "/v1/pool/quote",
        "What would come of it, and what would make the job run. Nothing is booked.",
        P.SEE_POOL,
        pool.PoolQuote,
        pool.PoolRequest,
    ),
    Operation(
        "end_pool_job",
        "POST",
        "/v1/pool/ended",
        "A job has ended: what it held is free.",
        P.USE_POOL,
        None,
        pool.PoolJobId,
        status=204,
    ),
    Operation(
        "mark_pool_job",
        "POST",
        "/v1/pool/priority",
        "Give a job priority, or take it: it is then never deleted for others.",
        P.RAISE_PRIORITY,
        pool.PoolJob,
        pool.PoolPriority,
    ),
    Operation(
        "list_pool_plans",
        "GET",
        "/v1/pool/plans",
        "Plans, oldest first.",
        P.SEE_POOL,
        rest.Page[pool.PoolPlan],
        query=(LIMIT, CURSOR, Parameter("all", bool, "Also those that are over, as far as they are kept.", False)),
    ),
    Operation("get_pool_plan", "GET", "/v1/pool/plans/{id}", "One plan.", P.SEE_POOL, pool.PoolPlan),
    Operation(
        "confirm_pool_step",
        "POST",
        "/v1/pool/plans/{id}/steps/{number}/confirm",
        "A step was carried out.",
        P.USE_POOL,
        pool.PoolPlan,
    ),
    Operation(
        "fail_pool_step",
        "POST",
        "/v1/pool/plans/{id}/steps/{number}/fail",
        "A step cannot be carried out: what is not yet confirmed is rolled back.",
        P.USE_POOL,
        pool.PoolPlan,
        pool.PoolFailure,
    ),
)
