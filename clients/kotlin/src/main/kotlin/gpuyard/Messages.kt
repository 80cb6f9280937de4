package gpuyard

import java.math.BigDecimal
import gpuyard.pool.v1.Budget as BudgetMessage
import gpuyard.pool.v1.Cost as CostMessage
import gpuyard.pool.v1.DeviceRequirements as RequirementsMessage
import gpuyard.pool.v1.Job as JobMessage
import gpuyard.pool.v1.JobAction as ActionMessage
import gpuyard.pool.v1.JobUniqueIdentifier as IdMessage
import gpuyard.pool.v1.Machine as MachineMessage
import gpuyard.pool.v1.Place as PlaceMessage
import gpuyard.pool.v1.Plan as PlanMessage
import gpuyard.pool.v1.QuoteResponse as QuoteMessage
import gpuyard.pool.v1.Step as StepMessage
import gpuyard.pool.v1.WayOut as WayOutMessage

/**
 * A float by its shortest decimal form: 0.1f is "0.1", not 0.100000001490116. What is no number stays as it is, for the
 * manager to refuse.
 */
internal fun decimalText(amount: Float): String = if (amount.isFinite()) BigDecimal(amount.toString()).toPlainString() else amount.toString()

internal fun JobUniqueIdentifier.toMessage(): IdMessage = IdMessage.newBuilder().setJob(job).setTeam(team).build()

internal fun IdMessage.toId() = JobUniqueIdentifier(job, team)

internal fun requirements(amount: String, deviceType: String): RequirementsMessage =
    RequirementsMessage.newBuilder().setAmount(amount).setDeviceType(deviceType).build()

internal fun Machine.toMessage(): MachineMessage =
    MachineMessage.newBuilder().setName(name).setDevices(devices).setDeviceType(deviceType).build()

internal fun MachineMessage.toMachine() = Machine(name, devices, deviceType)

internal fun Budget.toMessage(): BudgetMessage =
    BudgetMessage.newBuilder().setTeam(team).setAmount(amount.toPlainString()).setDeviceType(deviceType).build()

internal fun BudgetMessage.toBudget() = Budget(team, BigDecimal(amount), deviceType)

internal fun PlaceMessage.toPlace() = Place(machine, sharesList.map { DeviceShare(it.device, BigDecimal(it.amount)) })

internal fun JobMessage.toJobView() =
    JobView(
        id.toId(),
        BigDecimal(amount),
        deviceType,
        priority,
        checkpointable,
        if (hasPlace()) place.toPlace() else null,
        if (hasNextPlace()) nextPlace.toPlace() else null,
        sinceMs,
    )

internal fun PlanMessage.toPlan() =
    Plan(
        id,
        request.job.toId(),
        stepsList.map { it.toStep(id) },
        PlanState.valueOf(state.name.removePrefix("PLAN_STATE_")),
        madeAtMs,
        expiresAtMs,
    )

internal fun StepMessage.toStep(plan: String) =
    Step(action.toAction(plan), StepState.valueOf(state.name.removePrefix("STEP_STATE_")), note)

internal fun ActionMessage.toAction(plan: String): JobAction =
    when (actionCase) {
        ActionMessage.ActionCase.CREATE -> CreateJob(plan, number, job.toId(), BigDecimal(amount), create.place.toPlace())
        ActionMessage.ActionCase.DELETE -> DeleteJob(plan, number, job.toId(), BigDecimal(amount), delete.place.toPlace())
        ActionMessage.ActionCase.MOVE ->
            MoveJob(
                plan,
                number,
                job.toId(),
                BigDecimal(amount),
                if (move.hasSource()) move.source.toPlace() else null,
                if (move.hasPlace()) move.place.toPlace() else null,
            )
        else -> throw IllegalStateException("the manager is newer than this client: it knows an action this one does not")
    }

internal fun CostMessage.toCost() = Cost(deletedList.map { it.toId() }, movedList.map { it.toId() })

internal fun QuoteMessage.toQuote() =
    Quote(
        Verdict.valueOf(verdict.name.removePrefix("VERDICT_")),
        why,
        if (hasPlace()) place.toPlace() else null,
        cost.toCost(),
        getWhen(),
        waysOutList.map { it.toWayOut() },
    )

private fun WayOutMessage.toWayOut() =
    WayOut(
        what,
        endsList.map { it.toId() },
        amount.ifEmpty { null }?.let(::BigDecimal),
        budget.ifEmpty { null }?.let(::BigDecimal),
        cost.toCost(),
    )
