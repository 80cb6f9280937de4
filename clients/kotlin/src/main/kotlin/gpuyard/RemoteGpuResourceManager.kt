package gpuyard

import gpuyard.pool.v1.ConfirmStepRequest
import gpuyard.pool.v1.FailStepRequest
import gpuyard.pool.v1.GetPlanRequest
import gpuyard.pool.v1.GpuResourceManagerGrpc
import gpuyard.pool.v1.GpuResourceManagerGrpc.GpuResourceManagerBlockingStub
import gpuyard.pool.v1.JobEndedRequest
import gpuyard.pool.v1.ListBudgetsRequest
import gpuyard.pool.v1.ListJobsRequest
import gpuyard.pool.v1.ListMachinesRequest
import gpuyard.pool.v1.ListPlansRequest
import gpuyard.pool.v1.MarkJobPriorityRequest
import gpuyard.pool.v1.Problem
import gpuyard.pool.v1.ProvisionRequest
import gpuyard.pool.v1.RemoveMachineRequest
import gpuyard.pool.v1.RemoveTeamRequest
import gpuyard.pool.v1.SetBudgetRequest
import gpuyard.pool.v1.SetMachineRequest
import io.grpc.Grpc
import io.grpc.InsecureChannelCredentials
import io.grpc.ManagedChannel
import io.grpc.Metadata
import io.grpc.StatusRuntimeException
import io.grpc.TlsChannelCredentials
import io.grpc.stub.MetadataUtils
import java.io.File
import java.math.BigDecimal
import java.time.Duration
import java.util.UUID
import java.util.concurrent.TimeUnit

/**
 * The GpuResourceManager of a running gpuyard manager. Thread-safe; close it when it is no longer needed.
 *
 * @param address HOST:PORT of the manager's pool, as it printed it at its start
 * @param token a token of the manager, best of scope `pool`: it may then do nothing else
 * @param authority a PEM of who signed the manager's certificate (`ca.pem` of its home); the JVM's own unless given
 * @param plaintext without TLS; only loopback is spoken to like that unless asked for, since the token could be read
 * @param timeout of one call
 */
class RemoteGpuResourceManager
    @JvmOverloads
    constructor(
        address: String,
        token: String,
        authority: File? = null,
        plaintext: Boolean = isLoopback(address),
        private val timeout: Duration = Duration.ofSeconds(30),
    ) : GpuResourceManager,
        AutoCloseable {
        private val channel: ManagedChannel = Grpc.newChannelBuilder(address, credentials(authority, plaintext)).build()
        private val stub: GpuResourceManagerBlockingStub =
            GpuResourceManagerGrpc.newBlockingStub(channel).withInterceptors(MetadataUtils.newAttachHeadersInterceptor(signedIn(token)))

        // The three calls of the original

        @Throws(NoAvailableBudgetException::class)
        override fun tryProvisionResources(jobUniqueIdentifier: JobUniqueIdentifier, amount: Float): List<JobAction> =
            provision(jobUniqueIdentifier, listOf(decimalText(amount) to ""), priority = false, checkpointable = false)

        override fun jobEnded(jobUniqueIdentifier: JobUniqueIdentifier) {
            ask { it.jobEnded(JobEndedRequest.newBuilder().setJob(jobUniqueIdentifier.toMessage()).build()) }
        }

        override fun markJobPriority(jobUniqueIdentifier: JobUniqueIdentifier, priority: Boolean) {
            val request = MarkJobPriorityRequest.newBuilder().setJob(jobUniqueIdentifier.toMessage()).setPriority(priority)
            ask { it.markJobPriority(request.build()) }
        }

        // The same with exact amounts

        /** The amount as decimal text: "0.5". */
        @Throws(NoAvailableBudgetException::class)
        fun tryProvisionResources(jobUniqueIdentifier: JobUniqueIdentifier, amount: String): List<JobAction> =
            provision(jobUniqueIdentifier, listOf(amount to ""), priority = false, checkpointable = false)

        @Throws(NoAvailableBudgetException::class)
        fun tryProvisionResources(jobUniqueIdentifier: JobUniqueIdentifier, amount: BigDecimal): List<JobAction> =
            tryProvisionResources(jobUniqueIdentifier, amount.toPlainString())

        /** Alternatives in the order of preference. */
        @Throws(NoAvailableBudgetException::class)
        @JvmOverloads
        fun tryProvisionResources(
            jobUniqueIdentifier: JobUniqueIdentifier,
            alternatives: List<DeviceRequirements>,
            priority: Boolean = false,
            checkpointable: Boolean = false,
        ): List<JobAction> = provision(jobUniqueIdentifier, alternatives.map { it.amount.toPlainString() to it.deviceType }, priority, checkpointable)

        // Acknowledged work

        /** The step was carried out. */
        fun confirm(action: JobAction): Plan = confirm(action.plan, action.number)

        fun confirm(plan: String, number: Int): Plan =
            ask { it.confirmStep(ConfirmStepRequest.newBuilder().setPlan(plan).setNumber(number).build()) }.toPlan()

        /** The step cannot be carried out: what is not yet confirmed of its plan, and of plans built on it, is rolled back. */
        @JvmOverloads
        fun fail(action: JobAction, why: String = ""): Plan = fail(action.plan, action.number, why)

        fun fail(plan: String, number: Int, why: String): Plan =
            ask { it.failStep(FailStepRequest.newBuilder().setPlan(plan).setNumber(number).setWhy(why).build()) }.toPlan()

        fun plan(id: String): Plan = ask { it.getPlan(GetPlanRequest.newBuilder().setPlan(id).build()) }.toPlan()

        /** Open plans, oldest first; with [all] also those that are over. */
        @JvmOverloads
        fun plans(all: Boolean = false): List<Plan> =
            ask { it.listPlans(ListPlansRequest.newBuilder().setAll(all).build()) }.plansList.map { it.toPlan() }

        /** What [tryProvisionResources] would answer, and what would make the job run. Nothing is booked. */
        @JvmOverloads
        fun quote(
            jobUniqueIdentifier: JobUniqueIdentifier,
            alternatives: List<DeviceRequirements>,
            priority: Boolean = false,
            checkpointable: Boolean = false,
        ): Quote {
            val asked = alternatives.map { it.amount.toPlainString() to it.deviceType }
            return ask { it.quote(request(jobUniqueIdentifier, asked, priority, checkpointable).build()) }.toQuote()
        }

        // Machines, budgets, jobs

        fun setMachine(machine: Machine) {
            ask { it.setMachine(SetMachineRequest.newBuilder().setMachine(machine.toMessage()).build()) }
        }

        fun removeMachine(name: String) {
            ask { it.removeMachine(RemoveMachineRequest.newBuilder().setName(name).build()) }
        }

        fun machines(): List<Machine> = ask { it.listMachines(ListMachinesRequest.getDefaultInstance()) }.machinesList.map { it.toMachine() }

        /** A team is known once it has a budget, be it zero. */
        fun setBudget(budget: Budget) {
            ask { it.setBudget(SetBudgetRequest.newBuilder().setBudget(budget.toMessage()).build()) }
        }

        fun removeTeam(team: String) {
            ask { it.removeTeam(RemoveTeamRequest.newBuilder().setTeam(team).build()) }
        }

        fun budgets(): List<Budget> = ask { it.listBudgets(ListBudgetsRequest.getDefaultInstance()) }.budgetsList.map { it.toBudget() }

        /** Jobs that hold a place or are getting one; of one team, if it is named. */
        @JvmOverloads
        fun jobs(team: String = ""): List<JobView> =
            ask { it.listJobs(ListJobsRequest.newBuilder().setTeam(team).build()) }.jobsList.map { it.toJobView() }

        override fun close() {
            channel.shutdown()
            if (!channel.awaitTermination(timeout.toMillis(), TimeUnit.MILLISECONDS)) channel.shutdownNow()
        }

        private fun provision(
            job: JobUniqueIdentifier,
            alternatives: List<Pair<String, String>>,
            priority: Boolean,
            checkpointable: Boolean,
        ): List<JobAction> {
            val request = request(job, alternatives, priority, checkpointable).setIdempotencyKey(UUID.randomUUID().toString())
            return ask { it.tryProvisionResources(request.build()) }.toPlan().actions
        }

        private fun request(
            job: JobUniqueIdentifier,
            alternatives: List<Pair<String, String>>,
            priority: Boolean,
            checkpointable: Boolean,
        ): ProvisionRequest.Builder =
            ProvisionRequest
                .newBuilder()
                .setJob(job.toMessage())
                .addAllAlternatives(alternatives.map { (amount, type) -> requirements(amount, type) })
                .setPriority(priority)
                .setCheckpointable(checkpointable)

        private fun <Answer> ask(call: (GpuResourceManagerBlockingStub) -> Answer): Answer =
            try {
                call(stub.withDeadlineAfter(timeout.toMillis(), TimeUnit.MILLISECONDS))
            } catch (error: StatusRuntimeException) {
                throw explained(error)
            }

        private companion object {
            val AUTHORIZATION: Metadata.Key<String> = Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER)
            val PROBLEM: Metadata.Key<ByteArray> = Metadata.Key.of("gpuyard-problem-bin", Metadata.BINARY_BYTE_MARSHALLER)

            fun isLoopback(address: String): Boolean =
                address.substringBeforeLast(':').trim('[', ']').let { it == "localhost" || it == "::1" || it.startsWith("127.") }

            fun signedIn(token: String) = Metadata().apply { put(AUTHORIZATION, "Bearer $token") }

            fun credentials(authority: File?, plaintext: Boolean) =
                when {
                    plaintext -> InsecureChannelCredentials.create()
                    authority != null -> TlsChannelCredentials.newBuilder().trustManager(authority).build()
                    else -> TlsChannelCredentials.create()
                }

            fun explained(error: StatusRuntimeException): Exception {
                val detail = error.trailers?.get(PROBLEM) ?: return UnreachableException("the manager gave no answer: ${error.status}", error)
                val problem = Problem.parseFrom(detail)
                return refusal(problem.reason, problem.what, problem.fix).apply { initCause(error) }
            }
        }
    }
