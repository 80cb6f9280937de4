from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_STATE_UNSPECIFIED: _ClassVar[StepState]
    STEP_STATE_WAITING: _ClassVar[StepState]
    STEP_STATE_READY: _ClassVar[StepState]
    STEP_STATE_CONFIRMED: _ClassVar[StepState]
    STEP_STATE_FAILED: _ClassVar[StepState]
    STEP_STATE_VOID: _ClassVar[StepState]
    STEP_STATE_ROLLED_BACK: _ClassVar[StepState]

class PlanState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PLAN_STATE_UNSPECIFIED: _ClassVar[PlanState]
    PLAN_STATE_OPEN: _ClassVar[PlanState]
    PLAN_STATE_DONE: _ClassVar[PlanState]
    PLAN_STATE_ROLLED_BACK: _ClassVar[PlanState]

class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_UNSPECIFIED: _ClassVar[Verdict]
    VERDICT_NOW: _ClassVar[Verdict]
    VERDICT_RESHUFFLE: _ClassVar[Verdict]
    VERDICT_NO_BUDGET: _ClassVar[Verdict]
    VERDICT_NO_ARRANGEMENT: _ClassVar[Verdict]
    VERDICT_NEVER: _ClassVar[Verdict]
STEP_STATE_UNSPECIFIED: StepState
STEP_STATE_WAITING: StepState
STEP_STATE_READY: StepState
STEP_STATE_CONFIRMED: StepState
STEP_STATE_FAILED: StepState
STEP_STATE_VOID: StepState
STEP_STATE_ROLLED_BACK: StepState
PLAN_STATE_UNSPECIFIED: PlanState
PLAN_STATE_OPEN: PlanState
PLAN_STATE_DONE: PlanState
PLAN_STATE_ROLLED_BACK: PlanState
VERDICT_UNSPECIFIED: Verdict
VERDICT_NOW: Verdict
VERDICT_RESHUFFLE: Verdict
VERDICT_NO_BUDGET: Verdict
VERDICT_NO_ARRANGEMENT: Verdict
VERDICT_NEVER: Verdict

class JobUniqueIdentifier(_message.Message):
    __slots__ = ("job", "team")
    JOB_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    job: str
    team: str
    def __init__(self, job: _Optional[str] = ..., team: _Optional[str] = ...) -> None: ...

class DeviceRequirements(_message.Message):
    __slots__ = ("amount", "device_type")
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    amount: str
    device_type: str
    def __init__(self, amount: _Optional[str] = ..., device_type: _Optional[str] = ...) -> None: ...

class ProvisionRequest(_message.Message):
    __slots__ = ("job", "alternatives", "priority", "checkpointable", "idempotency_key")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTABLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    job: JobUniqueIdentifier
    alternatives: _containers.RepeatedCompositeFieldContainer[DeviceRequirements]
    priority: bool
    checkpointable: bool
    idempotency_key: str
    def __init__(self, job: _Optional[_Union[JobUniqueIdentifier, _Mapping]] = ..., alternatives: _Optional[_Iterable[_Union[DeviceRequirements, _Mapping]]] = ..., priority: _Optional[bool] = ..., checkpointable: _Optional[bool] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class DeviceShare(_message.Message):
    __slots__ = ("device", "amount")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    device: int
    amount: str
    def __init__(self, device: _Optional[int] = ..., amount: _Optional[str] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("machine", "shares")
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    machine: str
    shares: _containers.RepeatedCompositeFieldContainer[DeviceShare]
    def __init__(self, machine: _Optional[str] = ..., shares: _Optional[_Iterable[_Union[DeviceShare, _Mapping]]] = ...) -> None: ...

class CreateJob(_message.Message):
    __slots__ = ("place",)
    PLACE_FIELD_NUMBER: _ClassVar[int]
    place: Place
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class MoveJob(_message.Message):
    __slots__ = ("source", "place")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    source: Place
    place: Place
    def __init__(self, source: _Optional[_Union[Place, _Mapping]] = ..., place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class DeleteJob(_message.Message):
    __slots__ = ("place",)
    PLACE_FIELD_NUMBER: _ClassVar[int]
    place: Place
    def __init__(self, place: _Optional[_Union[Place, _Mapping]] = ...) -> None: ...

class JobAction(_message.Message):
    __slots__ = ("number", "job", "amount", "create", "move", "delete")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    MOVE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    number: int
    job: JobUniqueIdentifier
    amount: str
    create: CreateJob
    move: MoveJob
    delete: DeleteJob
    def __init__(self, number: _Optional[int] = ..., job: _Optional[_Union[JobUniqueIdentifier, _Mapping]] = ..., amount: _Optional[str] = ..., create: _Optional[_Union[CreateJob, _Mapping]] = ..., move: _Optional[_Union[MoveJob, _Mapping]] = ..., delete: _Optional[_Union[DeleteJob, _Mapping]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("action", "state", "note")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    action: JobAction
    state: StepState
    note: str
    def __init__(self, action: _Optional[_Union[JobAction, _Mapping]] = ..., state: _Optional[_Union[StepState, str]] = ..., note: _Optional[str] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("id", "request", "steps", "state", "made_at_ms", "expires_at_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    MADE_AT_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_AT_MS_FIELD_NUMBER: _ClassVar[int]
    id: str
    request: ProvisionRequest
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    state: PlanState
    made_at_ms: int
    expires_at_ms: int
    def __init__(self, id: _Optional[str] = ..., request: _Optional[_Union[ProvisionRequest, _Mapping]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ..., state: _Optional[_Union[PlanState, str]] = ..., made_at_ms: _Optional[int] = ..., expires_at_ms: _Optional[int] = ...) -> None: ...

class JobEndedRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobUniqueIdentifier
    def __init__(self, job: _Optional[_Union[JobUniqueIdentifier, _Mapping]] = ...) -> None: ...

class JobEndedResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MarkJobPriorityRequest(_message.Message):
    __slots__ = ("job", "priority")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    job: JobUniqueIdentifier
    priority: bool
    def __init__(self, job: _Optional[_Union[JobUniqueIdentifier, _Mapping]] = ..., priority: _Optional[bool] = ...) -> None: ...

class MarkJobPriorityResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ConfirmStepRequest(_message.Message):
    __slots__ = ("plan", "number")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    plan: str
    number: int
    def __init__(self, plan: _Optional[str] = ..., number: _Optional[int] = ...) -> None: ...

class FailStepRequest(_message.Message):
    __slots__ = ("plan", "number", "why")
    PLAN_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    plan: str
    number: int
    why: str
    def __init__(self, plan: _Optional[str] = ..., number: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class GetPlanRequest(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: str
    def __init__(self, plan: _Optional[str] = ...) -> None: ...

class ListPlansRequest(_message.Message):
    __slots__ = ("all",)
    ALL_FIELD_NUMBER: _ClassVar[int]
    all: bool
    def __init__(self, all: _Optional[bool] = ...) -> None: ...

class ListPlansResponse(_message.Message):
    __slots__ = ("plans",)
    PLANS_FIELD_NUMBER: _ClassVar[int]
    plans: _containers.RepeatedCompositeFieldContainer[Plan]
    def __init__(self, plans: _Optional[_Iterable[_Union[Plan, _Mapping]]] = ...) -> None: ...

class Cost(_message.Message):
    __slots__ = ("deleted", "moved")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    deleted: _containers.RepeatedCompositeFieldContainer[JobUniqueIdentifier]
    moved: _containers.RepeatedCompositeFieldContainer[JobUniqueIdentifier]
    def __init__(self, deleted: _Optional[_Iterable[_Union[JobUniqueIdentifier, _Mapping]]] = ..., moved: _Optional[_Iterable[_Union[JobUniqueIdentifier, _Mapping]]] = ...) -> None: ...

class WayOut(_message.Message):
    __slots__ = ("what", "ends", "amount", "budget", "cost")
    WHAT_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    what: str
    ends: _containers.RepeatedCompositeFieldContainer[JobUniqueIdentifier]
    amount: str
    budget: str
    cost: Cost
    def __init__(self, what: _Optional[str] = ..., ends: _Optional[_Iterable[_Union[JobUniqueIdentifier, _Mapping]]] = ..., amount: _Optional[str] = ..., budget: _Optional[str] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ...) -> None: ...

class QuoteResponse(_message.Message):
    __slots__ = ("verdict", "why", "place", "cost", "when", "ways_out")
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    WAYS_OUT_FIELD_NUMBER: _ClassVar[int]
    verdict: Verdict
    why: str
    place: Place
    cost: Cost
    when: str
    ways_out: _containers.RepeatedCompositeFieldContainer[WayOut]
    def __init__(self, verdict: _Optional[_Union[Verdict, str]] = ..., why: _Optional[str] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., cost: _Optional[_Union[Cost, _Mapping]] = ..., when: _Optional[str] = ..., ways_out: _Optional[_Iterable[_Union[WayOut, _Mapping]]] = ...) -> None: ...

class Machine(_message.Message):
    __slots__ = ("name", "devices", "device_type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    devices: int
    device_type: str
    def __init__(self, name: _Optional[str] = ..., devices: _Optional[int] = ..., device_type: _Optional[str] = ...) -> None: ...

class SetMachineRequest(_message.Message):
    __slots__ = ("machine",)
    MACHINE_FIELD_NUMBER: _ClassVar[int]
    machine: Machine
    def __init__(self, machine: _Optional[_Union[Machine, _Mapping]] = ...) -> None: ...

class SetMachineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveMachineRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class RemoveMachineResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMachinesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListMachinesResponse(_message.Message):
    __slots__ = ("machines",)
    MACHINES_FIELD_NUMBER: _ClassVar[int]
    machines: _containers.RepeatedCompositeFieldContainer[Machine]
    def __init__(self, machines: _Optional[_Iterable[_Union[Machine, _Mapping]]] = ...) -> None: ...

class Budget(_message.Message):
    __slots__ = ("team", "amount", "device_type")
    TEAM_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    team: str
    amount: str
    device_type: str
    def __init__(self, team: _Optional[str] = ..., amount: _Optional[str] = ..., device_type: _Optional[str] = ...) -> None: ...

class SetBudgetRequest(_message.Message):
    __slots__ = ("budget",)
    BUDGET_FIELD_NUMBER: _ClassVar[int]
    budget: Budget
    def __init__(self, budget: _Optional[_Union[Budget, _Mapping]] = ...) -> None: ...

class SetBudgetResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RemoveTeamRequest(_message.Message):
    __slots__ = ("team",)
    TEAM_FIELD_NUMBER: _ClassVar[int]
    team: str
    def __init__(self, team: _Optional[str] = ...) -> None: ...

class RemoveTeamResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBudgetsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBudgetsResponse(_message.Message):
    __slots__ = ("budgets",)
    BUDGETS_FIELD_NUMBER: _ClassVar[int]
    budgets: _containers.RepeatedCompositeFieldContainer[Budget]
    def __init__(self, budgets: _Optional[_Iterable[_Union[Budget, _Mapping]]] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("team",)
    TEAM_FIELD_NUMBER: _ClassVar[int]
    team: str
    def __init__(self, team: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "amount", "device_type", "priority", "checkpointable", "place", "next_place", "since_ms")
    ID_FIELD_NUMBER: _ClassVar[int]
    AMOUNT_FIELD_NUMBER: _ClassVar[int]
    DEVICE_TYPE_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINTABLE_FIELD_NUMBER: _ClassVar[int]
    PLACE_FIELD_NUMBER: _ClassVar[int]
    NEXT_PLACE_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    id: JobUniqueIdentifier
    amount: str
    device_type: str
    priority: bool
    checkpointable: bool
    place: Place
    next_place: Place
    since_ms: int
    def __init__(self, id: _Optional[_Union[JobUniqueIdentifier, _Mapping]] = ..., amount: _Optional[str] = ..., device_type: _Optional[str] = ..., priority: _Optional[bool] = ..., checkpointable: _Optional[bool] = ..., place: _Optional[_Union[Place, _Mapping]] = ..., next_place: _Optional[_Union[Place, _Mapping]] = ..., since_ms: _Optional[int] = ...) -> None: ...

class ListJobsResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("reason", "what", "fix", "field")
    REASON_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    FIELD_FIELD_NUMBER: _ClassVar[int]
    reason: str
    what: str
    fix: str
    field: str
    def __init__(self, reason: _Optional[str] = ..., what: _Optional[str] = ..., fix: _Optional[str] = ..., field: _Optional[str] = ...) -> None: ...
