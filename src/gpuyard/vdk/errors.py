"""What a GpuResourceManager refuses, each by a class and a stable word of its own. Nothing has changed then.

RefusedError
└── ProvisionError
    ├── NoAvailableBudgetException  (= TeamHasNoBudgetException) no budget for it, and nowhere free
    ├── NoArrangementError          budget, but no arrangement makes room; says what was tried
    │   └── NeverFitsError          nor ever could: no machine is that large, or has that type
    ├── BadAmountError              AmountNotANumber, AmountNotFinite, AmountZero, AmountNegative, AmountTooFine,
    │                               AmountAbsurd
    ├── BadNameError                a job, team, machine or device type cannot be called that
    ├── TeamUnknownError · MachineUnknownError · PlanUnknownError · StepUnknownError
    ├── JobUnknownError             never heard of
    ├── JobEndedError               heard of, and over
    ├── JobKnownError               it has a place already
    ├── StepNotReadyError           a step before it is not confirmed, or its place is not free yet
    ├── StepOverError               confirmed, failed or rolled back before
    └── MachineBusyError · TeamBusyError   jobs are in the way of the change
"""

from __future__ import annotations

from gpuyard.errors import RefusedError


class ProvisionError(RefusedError):
    """Base. `word` is the stable reason of a class that has only one."""

    word = ""

    def __init__(self, what: str, *, fix: str = "", field: str = "", reason: str = "") -> None:
        super().__init__(reason or self.word, what, fix=fix, field=field)


class NoAvailableBudgetException(ProvisionError):  # noqa: N818 - the seed's name
    word = "NoAvailableBudget"


TeamHasNoBudgetException = NoAvailableBudgetException


class NoArrangementError(ProvisionError):
    word = "NoArrangement"


class NeverFitsError(NoArrangementError):
    word = "NeverFits"


class BadAmountError(ProvisionError):
    word = "BadAmount"


class AmountNotANumberError(BadAmountError):
    word = "AmountNotANumber"


class AmountNotFiniteError(BadAmountError):
    word = "AmountNotFinite"


class AmountZeroError(BadAmountError):
    word = "AmountZero"


class AmountNegativeError(BadAmountError):
    word = "AmountNegative"


class AmountTooFineError(BadAmountError):
    word = "AmountTooFine"


class AmountAbsurdError(BadAmountError):
    word = "AmountAbsurd"


class BadNameError(ProvisionError):
    word = "BadName"


class TeamUnknownError(ProvisionError):
    word = "TeamUnknown"


class MachineUnknownError(ProvisionError):
    word = "MachineUnknown"


class PlanUnknownError(ProvisionError):
    word = "PlanUnknown"


class StepUnknownError(ProvisionError):
    word = "StepUnknown"


class JobUnknownError(ProvisionError):
    word = "JobUnknown"


class JobEndedError(ProvisionError):
    word = "JobEnded"


class JobKnownError(ProvisionError):
    word = "JobKnown"


class StepNotReadyError(ProvisionError):
    word = "StepNotReady"


class StepOverError(ProvisionError):
    word = "StepOver"


class MachineBusyError(ProvisionError):
    word = "MachineBusy"


class TeamBusyError(ProvisionError):
    word = "TeamBusy"
