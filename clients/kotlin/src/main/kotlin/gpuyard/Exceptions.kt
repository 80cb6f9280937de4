package gpuyard

/** The team has no budget for the job, and there is nowhere free to run it. Nothing has changed. */
class NoAvailableBudgetException(message: String) : Exception(message)

/** The name of the same in the original's diagrams. */
typealias TeamHasNoBudgetException = NoAvailableBudgetException

/**
 * Everything else that is refused, each by a class of its own. Nothing has changed then. [reason] is the manager's
 * stable word for it, [fix] what to do about it.
 */
open class RefusedException(val reason: String, message: String, val fix: String) : RuntimeException(message)

/** The team has budget, but no arrangement of the jobs makes room. */
open class NoArrangementException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** Nor ever could: no machine is that large, or has that type. */
class NeverFitsException(reason: String, message: String, fix: String) : NoArrangementException(reason, message, fix)

/** Not a number, infinite, zero, negative, too fine or absurd: [reason] says which. */
class BadAmountException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** A job, team, machine or device type cannot be called that. */
class BadNameException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

class TeamUnknownException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

class MachineUnknownException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

class PlanUnknownException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

class StepUnknownException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

class JobUnknownException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** The job was known, and is over. */
class JobEndedException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** The job has a place already. */
class JobKnownException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** A step before it is not confirmed, or its place is not free yet. */
class StepNotReadyException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** Confirmed, failed or rolled back before. */
class StepOverException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** Jobs hold devices of the machine. */
class MachineBusyException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** Jobs of the team are known. */
class TeamBusyException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** The token is missing, wrong, expired or revoked. */
class NotSignedInException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** The token's role or scope does not allow this. */
class NotAllowedException(reason: String, message: String, fix: String) : RefusedException(reason, message, fix)

/** No answer, or none in time. Whether the request arrived is not known: look at the plans. */
class UnreachableException(message: String, cause: Throwable) : RuntimeException(message, cause)

private typealias Make = (String, String, String) -> RefusedException

private val byReason: Map<String, Make> =
    mapOf(
        "NoArrangement" to ::NoArrangementException,
        "NeverFits" to ::NeverFitsException,
        "BadName" to ::BadNameException,
        "TeamUnknown" to ::TeamUnknownException,
        "MachineUnknown" to ::MachineUnknownException,
        "PlanUnknown" to ::PlanUnknownException,
        "StepUnknown" to ::StepUnknownException,
        "JobUnknown" to ::JobUnknownException,
        "JobEnded" to ::JobEndedException,
        "JobKnown" to ::JobKnownException,
        "StepNotReady" to ::StepNotReadyException,
        "StepOver" to ::StepOverException,
        "MachineBusy" to ::MachineBusyException,
        "TeamBusy" to ::TeamBusyException,
        "SignInNeeded" to ::NotSignedInException,
        "TooManyFailures" to ::NotSignedInException,
        "NotAllowed" to ::NotAllowedException,
    )

private val badAmounts =
    setOf("BadAmount", "AmountNotANumber", "AmountNotFinite", "AmountZero", "AmountNegative", "AmountTooFine", "AmountAbsurd")

/** The exception for a refusal of the manager, by its stable word. */
internal fun refusal(reason: String, message: String, fix: String): Exception =
    when (reason) {
        "NoAvailableBudget" -> NoAvailableBudgetException(message)
        in badAmounts -> BadAmountException(reason, message, fix)
        else -> (byReason[reason] ?: ::RefusedException)(reason, message, fix)
    }
