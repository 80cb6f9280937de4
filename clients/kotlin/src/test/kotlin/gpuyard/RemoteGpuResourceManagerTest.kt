package gpuyard

import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertInstanceOf
import org.junit.jupiter.api.Assertions.assertThrows
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.BeforeEach
import org.junit.jupiter.api.Test
import org.junit.jupiter.params.ParameterizedTest
import org.junit.jupiter.params.provider.CsvSource
import java.math.BigDecimal
import java.time.Duration

/** Against the running manager that GPUYARD_POOL (HOST:PORT) and GPUYARD_TOKEN name. Its pool is emptied. */
class RemoteGpuResourceManagerTest {
    private val address: String = System.getenv("GPUYARD_POOL") ?: error("GPUYARD_POOL names no running manager")
    private val token: String = System.getenv("GPUYARD_TOKEN") ?: error("GPUYARD_TOKEN holds no token")
    private val pool = RemoteGpuResourceManager(address, token)

    /** As VDK sees it. */
    private val manager: GpuResourceManager = pool

    private val one = JobUniqueIdentifier(job = "job1", team = "team-a")
    private val two = JobUniqueIdentifier(job = "job2", team = "team-a")
    private val theirs = JobUniqueIdentifier(job = "job1", team = "team-b")

    @BeforeEach
    fun emptyThePool() {
        pool.jobs().forEach { pool.jobEnded(it.id) }
        pool.machines().forEach { pool.removeMachine(it.name) }
        pool.budgets().map { it.team }.distinct().forEach { pool.removeTeam(it) }
    }

    @AfterEach
    fun close() = pool.close()

    private fun machines(vararg devices: Int) = devices.forEachIndexed { at, count -> pool.setMachine(Machine("machine_${at + 1}", count)) }

    private fun budgets(vararg amounts: Pair<String, Int>) = amounts.forEach { (team, amount) -> pool.setBudget(Budget(team, BigDecimal(amount))) }

    private fun done(actions: List<JobAction>) = actions.forEach { pool.confirm(it) }

    private fun whole(amount: Int) = listOf(DeviceRequirements(BigDecimal(amount)))

    // The three scenarios of the original

    @Test
    fun `scenario 1 - free space and budget`() {
        machines(1)
        budgets("team-a" to 1)
        val created = assertInstanceOf(CreateJob::class.java, manager.tryProvisionResources(one, 1f).single())
        assertEquals(listOf(one, "machine_1", 0, BigDecimal("1"), 1), listOf(created.job, created.machine, created.device, created.amount, created.number))
    }

    @Test
    fun `scenario 2 - over budget and nothing free`() {
        machines(1)
        budgets("team-a" to 1)
        done(manager.tryProvisionResources(one, 1f))
        val refused = assertThrows(NoAvailableBudgetException::class.java) { manager.tryProvisionResources(two, 1f) }
        assertTrue("budget" in refused.message.orEmpty(), refused.message)
        assertEquals(listOf(one), pool.jobs().map { it.id })
    }

    @Test
    fun `scenario 3 - refused, then successful once another job has ended`() {
        machines(1)
        budgets("team-a" to 1)
        done(manager.tryProvisionResources(one, 1f))
        assertThrows(TeamHasNoBudgetException::class.java) { manager.tryProvisionResources(two, 1f) }
        manager.jobEnded(one)
        assertEquals(two, manager.tryProvisionResources(two, 1f).single().job)
    }

    // Making room

    @Test
    fun `a job of a team over its budget is deleted before the new one is created`() {
        machines(2)
        budgets("team-a" to 1, "team-b" to 1)
        done(manager.tryProvisionResources(one, 1f))
        done(manager.tryProvisionResources(two, 1f))
        val (deleted, created) = manager.tryProvisionResources(theirs, 1f)
        assertInstanceOf(DeleteJob::class.java, deleted)
        assertEquals(theirs to deleted.machine, assertInstanceOf(CreateJob::class.java, created).job to created.machine)
    }

    @Test
    fun `a job with priority is never deleted`() {
        machines(2)
        budgets("team-a" to 1, "team-b" to 1)
        listOf(one, two).forEach { done(manager.tryProvisionResources(it, 1f)) }
        listOf(one, two).forEach { manager.markJobPriority(it, true) }
        assertThrows(NoArrangementException::class.java) { manager.tryProvisionResources(theirs, 1f) }
        manager.markJobPriority(two, false)
        assertEquals(two, assertInstanceOf(DeleteJob::class.java, manager.tryProvisionResources(theirs, 1f).first()).job)
    }

    @Test
    fun `a job is moved so that a larger one fits`() {
        machines(2, 2)
        budgets("team-a" to 2, "team-b" to 2)
        val small = (1..4).map { JobUniqueIdentifier("small$it", "team-a") }
        small.forEach { done(manager.tryProvisionResources(it, 1f)) }
        val onEach = pool.jobs().groupBy { it.place!!.machine }.values.map { it.first().id }
        onEach.forEach { manager.jobEnded(it) }
        val actions = manager.tryProvisionResources(theirs, 2f)
        val moved = assertInstanceOf(MoveJob::class.java, actions.first())
        assertTrue(moved.source!!.machine != moved.machine)
        assertEquals(moved.source!!.machine, assertInstanceOf(CreateJob::class.java, actions.last()).machine)
    }

    // Amounts

    @Test
    fun `ten times a tenth fit on one device and three times 0,6 do not fit on two`() {
        machines(1)
        budgets("team-a" to 1)
        repeat(10) { manager.tryProvisionResources(JobUniqueIdentifier("tenth$it", "team-a"), 0.1f) }
        assertThrows(NoAvailableBudgetException::class.java) { manager.tryProvisionResources(one, 0.001f) }
        pool.jobs().forEach { manager.jobEnded(it.id) }
        machines(2)
        budgets("team-a" to 2)
        repeat(2) { manager.tryProvisionResources(JobUniqueIdentifier("large$it", "team-a"), 0.6f) }
        assertThrows(NoArrangementException::class.java) { manager.tryProvisionResources(one, 0.6f) }
    }

    @Test
    fun `exact amounts are kept`() {
        machines(4)
        budgets("team-a" to 4)
        assertEquals(BigDecimal("0.125"), pool.tryProvisionResources(one, "0.125").single().amount)
        assertEquals(BigDecimal("2.5"), pool.tryProvisionResources(two, BigDecimal("2.500")).single().amount)
        val shares = pool.jobs().single { it.id == two }.nextPlace!!.shares.map { it.amount }
        assertEquals(BigDecimal("2.5"), shares.reduce(BigDecimal::add))
    }

    @ParameterizedTest
    @CsvSource("NaN, AmountNotANumber", "Infinity, AmountNotFinite", "-Infinity, AmountNotFinite", "0, AmountZero", "-1, AmountNegative", "1e-4, AmountTooFine", "1e30, AmountAbsurd")
    fun `an amount that makes no sense has an error of its own`(amount: Float, reason: String) {
        machines(1)
        budgets("team-a" to 1)
        assertEquals(reason, assertThrows(BadAmountException::class.java) { manager.tryProvisionResources(one, amount) }.reason)
        assertEquals(emptyList<JobView>(), pool.jobs())
    }

    @Test
    fun `alternatives are tried in the order of preference`() {
        pool.setMachine(Machine("old", 1, "v100"))
        pool.setMachine(Machine("new", 1, "a100"))
        budgets("team-a" to 0)
        val wishes = listOf("a100", "v100").map { DeviceRequirements(BigDecimal.ONE, it) }
        assertEquals(listOf("new", "old"), listOf(one, two).map { pool.tryProvisionResources(it, wishes).single().machine })
    }

    // What cannot be

    @Test
    fun `what is unknown, known or over has an exception of its own`() {
        machines(1)
        assertThrows(TeamUnknownException::class.java) { manager.tryProvisionResources(one, 1f) }
        budgets("team-a" to 2)
        val never = JobUniqueIdentifier(job = "never", team = "team-a")
        assertThrows(JobUnknownException::class.java) { manager.jobEnded(never) }
        assertThrows(JobUnknownException::class.java) { manager.markJobPriority(never, true) }
        assertThrows(NeverFitsException::class.java) { manager.tryProvisionResources(one, 2f) }
        assertThrows(NoAvailableBudgetException::class.java) { manager.tryProvisionResources(one, 3f) }
        manager.tryProvisionResources(one, 1f)
        assertThrows(JobKnownException::class.java) { manager.tryProvisionResources(one, 1f) }
        assertThrows(MachineBusyException::class.java) { pool.removeMachine("machine_1") }
        assertThrows(TeamBusyException::class.java) { pool.removeTeam("team-a") }
        manager.jobEnded(one)
        assertThrows(JobEndedException::class.java) { manager.jobEnded(one) }
        assertThrows(PlanUnknownException::class.java) { pool.plan("nothing") }
        assertThrows(MachineUnknownException::class.java) { pool.removeMachine("nothing") }
    }

    // Acknowledged work

    @Test
    fun `a plan is open until its steps are confirmed and gone when one fails`() {
        machines(1)
        budgets("team-a" to 1)
        val first = manager.tryProvisionResources(one, 1f).single()
        assertEquals(listOf(PlanState.OPEN), pool.plans().map { it.state })
        assertEquals(PlanState.ROLLED_BACK, pool.fail(first, "the machine is off").state)
        assertEquals(emptyList<JobView>(), pool.jobs())
        val again = manager.tryProvisionResources(one, 1f).single()
        assertEquals(PlanState.DONE, pool.confirm(again).state)
        assertThrows(StepOverException::class.java) { pool.confirm(again) }
        assertThrows(StepUnknownException::class.java) { pool.confirm(again.plan, 7) }
        assertEquals(listOf(StepState.CONFIRMED), pool.plan(again.plan).steps.map { it.state })
        assertEquals(2, pool.plans(all = true).count { it.job == one && it.id in listOf(first.plan, again.plan) })
    }

    @Test
    fun `a step waits for the one before it`() {
        machines(2)
        budgets("team-a" to 1, "team-b" to 1)
        listOf(one, two).forEach { done(manager.tryProvisionResources(it, 1f)) }
        val (deleted, created) = manager.tryProvisionResources(theirs, 1f)
        assertThrows(StepNotReadyException::class.java) { pool.confirm(created) }
        pool.confirm(deleted)
        assertEquals(PlanState.DONE, pool.confirm(created).state)
    }

    @Test
    fun `a quote says what would come of it and books nothing`() {
        machines(1)
        budgets("team-a" to 1)
        assertEquals(Verdict.NOW, pool.quote(one, whole(1)).verdict)
        assertEquals(emptyList<JobView>(), pool.jobs())
        manager.tryProvisionResources(one, 1f)
        val refused = pool.quote(two, whole(1))
        assertEquals(Verdict.NO_BUDGET, refused.verdict)
        assertTrue("budget" in refused.why, "$refused")
        assertEquals(listOf(listOf(one)), refused.waysOut.map { it.ends })
        budgets("team-a" to 9)
        assertEquals(Verdict.NEVER, pool.quote(two, whole(8)).verdict)
    }

    // The connection

    @Test
    fun `without a valid token nothing is answered`() {
        RemoteGpuResourceManager(address, "gy_no_such").use { stranger ->
            assertThrows(NotSignedInException::class.java) { stranger.machines() }
        }
    }

    @Test
    fun `a manager that is not there is told apart from a refusal`() {
        RemoteGpuResourceManager("127.0.0.1:1", token, timeout = Duration.ofSeconds(5)).use { nowhere ->
            assertThrows(UnreachableException::class.java) { nowhere.machines() }
        }
    }

    @Test
    fun `the checked exception is declared for Java`() {
        val method = GpuResourceManager::class.java.getMethod("tryProvisionResources", JobUniqueIdentifier::class.java, Float::class.java)
        assertEquals(listOf(NoAvailableBudgetException::class.java), method.exceptionTypes.toList())
    }
}
