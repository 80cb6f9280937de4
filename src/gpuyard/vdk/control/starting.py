"""Starting a data job at once or not at all, by the manager's own scheduler.

Place in the flow: REST ─Submission─▶ **starting** ─plan_with─▶ core ─▶ Submit, or a refusal in plain words. The next
plan with the job in it is asked for: where it starts, perhaps after others give way or move, it is submitted, and
answered once a real cycle has given it its place. Where it does not, the team is told why with numbers, and nothing is
queued. Invariant: starts are one after the other; whoever is told yes has a place, and no two have the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

from gpuyard.errors import RefusedError
from gpuyard.model.plan import Bind, Plan, Promise
from gpuyard.model.reasons import Reason
from gpuyard.service.call import Call
from gpuyard.service.port import ManagerPort
from gpuyard.service.problems import ProblemReason
from gpuyard.service.questions import CANDIDATE
from gpuyard.service.redact import Veil
from gpuyard.service.turns import Turns
from gpuyard.vdk.control.executions import active
from gpuyard.vdk.control.refusals import Asked, refusal
from gpuyard.vdk.control.state import JobKey
from gpuyard.worlds.standalone.intents import Steer, Submit
from gpuyard.worlds.standalone.lifecycle import JobState, TaskPhase
from gpuyard.worlds.standalone.submitting import submitted_before

PLACED_S: Final = 15.0
"""Within which a cycle has placed what was planned; cycles take milliseconds."""
LOOK_S: Final = 0.02


class Starter:
    """Lets one start after the other."""

    def __init__(self) -> None:
        self._turns = Turns(1, "the start of a data job")

    async def start(self, call: Call, intent: Submit, key: JobKey) -> str:
        """The id of the job, which has its place; refused where it cannot have one now."""
        async with self._turns.turn(call.caller.user):
            before = submitted_before(call.state, intent.key, intent.fingerprint)
            if before is not None:
                return before[0]
            _check_idle(call, key)
            async with call.service.traffic.thinking.turn(call.caller.user):
                plan, snapshot = await call.manager.plan_with(intent.submission, call.caller)
                asked = Asked(intent.submission.form, snapshot, await call.manager.standing_now())
            if not starts(plan):
                raise refusal(asked, _seen(call, plan.reasons_for(CANDIDATE)))
            done = await call.manager.do(intent, call.caller)
            waits = await _until_placed(call.manager, done.jobs[0])
            if waits is None:
                return done.jobs[0]
            # Somebody else was served in between: what was told no is not left in the queue.
            await call.manager.do(Steer(done.jobs[0], "cancel"), call.caller)
            raise refusal(asked, _seen(call, waits))


def _check_idle(call: Call, key: JobKey) -> None:
    """A data job runs once at a time, as with VDK."""
    runs = active(call.state, key)
    if runs is not None:
        what = f'data job "{key.name}" has an execution that is not over: {runs.id}'
        raise RefusedError(ProblemReason.DATA_JOB_RUNS, what, fix="wait until it has ended, or cancel it")


def starts(plan: Plan) -> bool:
    """Whether the job that was asked about gets a place, now or once others have left it."""
    return any(isinstance(action, Bind | Promise) and action.job == CANDIDATE for action in plan.actions)


def _seen(call: Call, reasons: tuple[Reason, ...]) -> tuple[Reason, ...]:
    return Veil(call.state, call.caller).reasons(reasons)


async def _until_placed(manager: ManagerPort, id: str) -> tuple[Reason, ...] | None:
    """None once it has its place; why it waits, where a cycle has left it waiting."""
    try:
        async with asyncio.timeout(PLACED_S):
            while True:
                record = manager.state.jobs.get(id)
                if (
                    record is None
                    or record.state is not JobState.WAITING
                    or record.tasks[0].phase is not TaskPhase.WAITING
                ):
                    return None
                reasons = manager.waiting_reasons(id)
                if reasons:
                    return reasons
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise RefusedError(
            ProblemReason.UNAVAILABLE, f"no cycle has looked at job {id} yet", fix=f"it waits: gpuyard explain {id}"
        ) from None
