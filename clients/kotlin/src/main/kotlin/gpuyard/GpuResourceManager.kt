package gpuyard

import java.math.BigDecimal

/**
 * Responsible for managing GPU resources most efficiently.
 */
interface GpuResourceManager {
    /**
     * Checks if a job can be deployed.
     *
     * @throws NoAvailableBudgetException if the team has no budget for the job and there is nowhere free to run it
     * @return the actions that run the requested job, in the order in which to carry them out. This might involve
     *   deleting some jobs of teams that are over their budget, and moving jobs to other machines to pack better.
     */
    @Throws(NoAvailableBudgetException::class)
    fun tryProvisionResources(jobUniqueIdentifier: JobUniqueIdentifier, amount: Float): List<JobAction>

    /**
     * Marks the completion of a job, releasing its resources.
     */
    fun jobEnded(jobUniqueIdentifier: JobUniqueIdentifier)

    /**
     * Marks a job's priority status. High priority jobs will never be killed in order to accommodate other jobs.
     */
    fun markJobPriority(jobUniqueIdentifier: JobUniqueIdentifier, priority: Boolean)
}

/** A job is known by its name and its team together. */
data class JobUniqueIdentifier(val job: String, val team: String)

/** What a job holds of one device of its machine. */
data class DeviceShare(val device: Int, val amount: BigDecimal)

/** Where a job lies: one machine, and its devices there. */
data class Place(val machine: String, val shares: List<DeviceShare>) {
    /** The first of its devices; the only one of a job that takes no more than one. */
    val device: Int get() = shares.first().device
}

/** What the platform has to do. Its step of the plan is confirmed, or failed, by [plan] and [number]. */
sealed interface JobAction {
    val plan: String

    /** Steps count from 1 and are carried out in this order. */
    val number: Int
    val job: JobUniqueIdentifier
    val amount: BigDecimal

    /** Where the job starts, or lies if it is deleted; null only while it is between two places. */
    val place: Place?
    val machine: String? get() = place?.machine
    val device: Int? get() = place?.device
}

/** Start the job that was asked for. */
data class CreateJob(
    override val plan: String,
    override val number: Int,
    override val job: JobUniqueIdentifier,
    override val amount: BigDecimal,
    override val place: Place,
) : JobAction

/**
 * Stop the job where it is, then start it at its new place. Where jobs swap places, one of them is moved in two steps:
 * the first has no [place] and only stops it, a later one of the same plan has no [source] and starts it.
 */
data class MoveJob(
    override val plan: String,
    override val number: Int,
    override val job: JobUniqueIdentifier,
    override val amount: BigDecimal,
    val source: Place?,
    override val place: Place?,
) : JobAction

/** Stop the job for good: its team is over its budget. */
data class DeleteJob(
    override val plan: String,
    override val number: Int,
    override val job: JobUniqueIdentifier,
    override val amount: BigDecimal,
    override val place: Place,
) : JobAction

/** One way to serve a request: so much of this type; without a type, of any there is. */
data class DeviceRequirements(val amount: BigDecimal, val deviceType: String = "")

enum class StepState { WAITING, READY, CONFIRMED, FAILED, VOID, ROLLED_BACK }

/** A step of a plan; [note] says why it failed or was rolled back, or what it waits for. */
data class Step(val action: JobAction, val state: StepState, val note: String)

enum class PlanState { OPEN, DONE, ROLLED_BACK }

/** What was decided for one request, and how far it has come. */
data class Plan(
    val id: String,
    val job: JobUniqueIdentifier,
    val steps: List<Step>,
    val state: PlanState,
    val madeAtMs: Long,
    val expiresAtMs: Long,
) {
    val actions: List<JobAction> get() = steps.map { it.action }
}

enum class Verdict { NOW, RESHUFFLE, NO_BUDGET, NO_ARRANGEMENT, NEVER }

/** Whom a plan would cost. */
data class Cost(val deleted: List<JobUniqueIdentifier>, val moved: List<JobUniqueIdentifier>)

/** One change that would let the job run: these jobs end, a smaller amount, a larger budget. */
data class WayOut(
    val what: String,
    val ends: List<JobUniqueIdentifier>,
    val amount: BigDecimal?,
    val budget: BigDecimal?,
    val cost: Cost,
)

/** What would come of a request, and what would make it run. Nothing is booked. */
data class Quote(
    val verdict: Verdict,
    val why: String,
    val place: Place?,
    val cost: Cost,
    val whenItRuns: String,
    val waysOut: List<WayOut>,
)

data class Machine(val name: String, val devices: Int, val deviceType: String = "gpu")

/** What a team is owed of one device type. */
data class Budget(val team: String, val amount: BigDecimal, val deviceType: String = "gpu")

/** A job that holds a place ([place], as confirmed) or is getting one ([nextPlace]). */
data class JobView(
    val id: JobUniqueIdentifier,
    val amount: BigDecimal,
    val deviceType: String,
    val priority: Boolean,
    val checkpointable: Boolean,
    val place: Place?,
    val nextPlace: Place?,
    val sinceMs: Long,
)
