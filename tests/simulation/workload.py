"""What people do in a simulation: submit, steer, scale, drain, edit teams. Whatever is refused is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from gpuyard.model.jobs import Job, Request, Sharing, Task, TaskGroup, on_nodes
from gpuyard.model.quantities import GPU, MILLI
from gpuyard.model.queues import Queue, QueueShare
from gpuyard.model.recurrence import Missed, Overlap, Recurrence
from gpuyard.model.work import Array, OnNodeLost, Work
from gpuyard.platform.simulated import Chance
from gpuyard.wire.access import Grant, Role
from gpuyard.worlds.standalone.intents import (
    VERBS,
    AdmitNode,
    DeclareLost,
    DrainNode,
    Intent,
    LabelNode,
    PauseSchedule,
    RemoveNode,
    RemoveSchedule,
    RemoveUser,
    ResumeNode,
    ResumeSchedule,
    RunSchedule,
    ScaleJob,
    SetSchedule,
    SetTeams,
    SetUser,
    Steer,
    Submission,
    Submit,
    TeamSettings,
)
from gpuyard.worlds.standalone.lifecycle import OVER, JobState
from gpuyard.worlds.standalone.records import JobRecord, State

if TYPE_CHECKING:
    from tests.simulation.world import Cluster

MAX_UNFINISHED: Final = 10
TEAMS: Final = ("vision", "speech", "robots")
GRACES_MS: Final = (0, 500, 5_000, 30_000)
OPERATOR: Final = "operator"
OWNER: Final = "rita"
"""Whose schedules they are."""


class Workload:
    """Draws deeds and asks the manager for them."""

    def __init__(self, cluster: Cluster, chance: Chance) -> None:
        self._cluster = cluster
        self._chance = chance
        self._keys = 0
        self._admitted = 0
        self._open: dict[str, Submit] = {}
        """Requests without an answer yet: a client asks again with the same key."""

    @property
    def _state(self) -> State:
        return self._cluster.manager.state

    def some(self) -> None:
        """One deed."""
        if not self._cluster.manager.listens:
            return
        if not self.teams():
            # The first setting of teams was lost in a crash, and nobody was told that it was done.
            self.set_teams()
            return
        deeds: list[tuple[Callable[[], None], int]] = [
            (self.submit, 30),
            (self._ask_again, 5),
            (self._steer, 16),
            (self._scale, 4),
            (self._node, 5),
            (self.set_teams, 2),
            (self._schedule, 6),
        ]
        self._chance.weighted(deeds)()

    def _do(self, intent: Intent, what: str, detail: str) -> bool:
        done = self._cluster.manager.do(intent, OPERATOR, lambda _: None)
        if done:
            self._cluster.story.deed("operator", what, detail)
        return done

    # ----------------------------------------------------------------------------------------------------------- jobs

    def submit(self) -> None:
        unfinished = len(self._state.jobs) - len(self._state.finished)
        if unfinished >= MAX_UNFINISHED:
            return
        self._keys += 1
        key = f"key-{self._keys}"
        submission = self._submission()
        self._send(Submit(submission, key, key))

    def _send(self, intent: Submit) -> None:
        self._open[intent.key] = intent

        def answered(jobs: tuple[str, ...]) -> None:
            self._open.pop(intent.key, None)
            self._cluster.invariants.answer(intent.key, jobs)

        if self._cluster.manager.do(intent, "ann", answered):
            form, work = intent.submission.form, intent.submission.work
            self._cluster.story.deed(
                "ann",
                "submits",
                f"{intent.key}: {len(form.tasks)} tasks, at least {form.group.fewest_tasks}, of"
                f" {form.tasks[0].request.devices} x {form.tasks[0].request.gpu_milli} for {form.queue},"
                f" retries {work.retries}, grace {work.grace_ms}, {work.on_node_lost}",
            )
        else:
            self._open.pop(intent.key, None)

    def _ask_again(self) -> None:
        """A client that got no answer asks again, with the same key: at most one of both requests counts."""
        if self._open:
            self._send(self._open[self._chance.pick(sorted(self._open))])

    def unanswered(self, count: int) -> None:
        self._cluster.story.tell("ann", f"gets no answer to {count} requests")

    def _submission(self) -> Submission:
        chance = self._chance
        tasks = chance.weighted([(1, 50), (2, 20), (3, 10), (4, 10), (6, 3)])
        least = tasks if chance.happens(600) else chance.between(1, tasks)
        array = None
        if chance.happens(80):
            count = chance.between(2, 5)
            array = Array(tuple(range(count)), chance.pick((0, 1, 2)))
            tasks = least = 1
        after, afterok = self._dependencies(), self._dependencies()
        form = self._form(tasks, least)
        return Submission(
            "job", "ann", form, self._work(), array, after, afterok, held=array is None and chance.happens(40)
        )

    def _form(self, tasks: int, least: int) -> Job:
        chance = self._chance
        request = self._request()
        grouped = tasks >= 2 and chance.happens(60)
        group = TaskGroup(min_tasks=least)
        if grouped:
            group = TaskGroup("all", children=(TaskGroup("head", 1), TaskGroup("rest", max(least - 1, 1))))
        names = ["head" if index == 0 else "rest" for index in range(tasks)] if grouped else [""] * tasks
        if tasks in (4, 6) and not grouped and chance.happens(500):
            group = on_nodes(2, tasks // 2, chance.pick((1, 2)))
            names = [child.name for child in group.children for _ in range(tasks // 2)]
        preemptible = chance.happens(850)
        return Job(
            id="",
            queue=chance.pick(self.teams()),
            tasks=tuple(Task("", request, group=name) for name in names),
            group=group,
            priority=chance.pick((25, 50, 50, 50, 75, 100)),
            preemptible=preemptible,
            spread=chance.happens(150),
            run_limit_ms=chance.pick((None, None, None, 5_000, 30_000)),
            movable=chance.happens(900),
        )

    def _request(self) -> Request:
        chance = self._chance
        kind = chance.weighted([("whole", 50), ("share", 25), ("memory", 15), ("none", 10)])
        cpu = chance.pick((0, 500, 2_000))
        sharing = chance.pick((Sharing.TIME_SLICED, Sharing.TIME_SLICED, Sharing.MPS))
        match kind:
            case "whole":
                return Request(devices=chance.weighted([(1, 60), (2, 30), (3, 8)]), cpu_milli=cpu)
            case "share":
                return Request(devices=1, gpu_milli=chance.pick((250, 300, 500, 600)), sharing=sharing, cpu_milli=cpu)
            case "memory":
                mib = chance.pick((4_000, 6_000, 9_000))
                return Request(devices=1, gpu_milli=0, gpu_memory_mib=mib, sharing=sharing, cpu_milli=cpu)
        return Request(devices=0, cpu_milli=max(cpu, 500))

    def _work(self) -> Work:
        chance = self._chance
        return Work(
            command=("train",),
            retries=chance.pick((0, 0, 1, 3)),
            on_node_lost=chance.pick((OnNodeLost.RESTART, OnNodeLost.RESTART, OnNodeLost.WAIT, OnNodeLost.FAIL)),
            grace_ms=chance.pick(GRACES_MS),
        )

    def _dependencies(self) -> tuple[str, ...]:
        if not self._chance.happens(60):
            return ()
        known = [*self._state.jobs, *self._state.arrays]
        return (self._chance.pick(known),) if known else ()

    def _job(self, states: frozenset[JobState]) -> JobRecord | None:
        jobs = [job for job in self._state.jobs.values() if job.state in states]
        return self._chance.pick(jobs) if jobs else None

    def _steer(self) -> None:
        weights = [("cancel", 4), ("hold", 2), ("release", 4), ("suspend", 3), ("resume", 4), ("requeue", 3)]
        verb = self._chance.weighted(weights)
        job = self._job(VERBS[verb])
        if job is not None:
            self._do(Steer(job.id, verb), f"{verb}s", f"job {job.id}, which is {job.state}")

    def _scale(self) -> None:
        job = self._job(frozenset(JobState) - OVER)
        if job is None:
            return
        tasks = self._chance.between(1, 6)
        least = self._chance.pick((None, 1, tasks))
        self._do(ScaleJob(job.id, tasks, least), "scales", f"job {job.id} to {tasks} tasks, at least {least}")

    # ------------------------------------------------------------------------------------------------- recurring jobs

    def _schedule(self) -> None:
        """Schedules come and go, and so does the right of their owner to run them."""
        deeds: list[tuple[Callable[[], None], int]] = [
            (self._set_schedule, 5),
            (self._steer_schedule, 4),
            (self.set_owner, 2),
        ]
        self._chance.weighted(deeds)()

    def _set_schedule(self) -> None:
        chance = self._chance
        team, name = chance.pick(self.teams()), chance.pick(("often", "seldom"))
        form = replace(self._form(1, 1), queue=team, priority=50, preemptible=True)
        array = Array((0, 1), chance.pick((0, 1))) if chance.happens(200) else None
        recurrence = Recurrence(
            chance.pick(("* * * * *", "*/2 * * * *")),
            chance.pick(("UTC", "Europe/Berlin")),
            chance.pick(tuple(Overlap)),
            chance.pick(tuple(Missed)),
            chance.pick((0, 90_000, 3_600_000)),
        )
        submission = Submission("recurring", OWNER, form, self._work(), array)
        detail = f"{team}/{name}: {recurrence.cron}, overlap {recurrence.overlap}, missed {recurrence.missed}"
        self._do(SetSchedule(team, name, recurrence, submission), "schedules", detail)

    def _steer_schedule(self) -> None:
        if not self._state.schedules:
            return
        team, _, name = self._chance.pick(sorted(self._state.schedules)).partition("/")
        kinds: list[tuple[type[PauseSchedule | ResumeSchedule | RunSchedule | RemoveSchedule], int]] = [
            (PauseSchedule, 2),
            (ResumeSchedule, 6),
            (RunSchedule, 3),
            (RemoveSchedule, 1),
        ]
        kind = self._chance.weighted(kinds)
        self._do(kind(team, name), kind.__name__, f"{team}/{name}")

    def set_owner(self) -> None:
        """In most cases the owner of schedules may submit, in some no more, or is gone."""
        if OWNER in self._state.users and self._chance.happens(150):
            self._do(RemoveUser(OWNER), "removes", OWNER)
            return
        grants = (Grant(Role.MEMBER),) if self._chance.happens(700) or OWNER not in self._state.users else ()
        self._do(SetUser(OWNER, grants), "grants", f"{OWNER} {'everything' if grants else 'nothing'}")

    # ------------------------------------------------------------------------------------------------------- machines

    def _node(self) -> None:
        name = self._chance.pick(sorted(self._cluster.machines))
        kinds: list[tuple[type[DrainNode | ResumeNode | DeclareLost | RemoveNode], int]] = [
            (DrainNode, 4),
            (ResumeNode, 6),
            (DeclareLost, 6),
            (RemoveNode, 1),
        ]
        kind = self._chance.weighted(kinds)
        if name not in self._state.nodes:
            self.admit(name)
        elif self._chance.happens(50):
            self._do(LabelNode(name, {"rack": self._chance.pick(("a", "b"))}), "labels", name)
        elif kind is not DeclareLost or self._cluster.truth.is_empty(name):
            # To declare a machine lost is to say that nothing runs there any more: the operator has looked.
            self._do(kind(name), kind.__name__, name)

    def admit(self, name: str) -> None:
        self._admitted += 1
        self._do(AdmitNode(name, f"certificate {self._admitted}"), "admits", name)

    # ---------------------------------------------------------------------------------------------------------- teams

    def teams(self) -> tuple[str, ...]:
        return tuple(self._state.teams)

    def set_teams(self) -> None:
        """Quotas and limits for the same teams; now and then none, or one more."""
        chance = self._chance
        gpus = sum(len(machine.facts.devices) for machine in self._cluster.machines.values())
        count = max(len(self._state.teams), chance.between(2, len(TEAMS)))
        quota = gpus * MILLI // count
        above = Queue("research", shares=(QueueShare(GPU, None, None),), overcommit=True)
        queues = [above]
        for name in TEAMS[:count]:
            owed = chance.pick((quota, quota, quota // 2, 0))
            limit = chance.pick((None, None, None, max(owed, gpus * MILLI // 2)))
            parent = "research" if chance.happens(500) else None
            queues.append(Queue(name, parent, (QueueShare(GPU, owed, limit),), priority=chance.pick((100, 100, 200))))
        if all(queue.parent is None for queue in queues):
            queues.remove(above)
        settings = {name: TeamSettings(idle_limit_ms=chance.pick((None, 60_000))) for name in TEAMS[:count]}
        self._do(SetTeams(tuple(queues), settings), "sets", f"teams {', '.join(TEAMS[:count])}")

    # ------------------------------------------------------------------------------------------------- when it is quiet

    def let_everything_go(self) -> None:
        """The operator opens all machines and lets all jobs go on, so that everything can come to its end."""
        state = self._state
        for schedule in list(state.schedules.values()):
            if not schedule.stands_still:
                self._do(PauseSchedule(schedule.team, schedule.name), "pauses", schedule.id)
        for name in sorted(self._cluster.machines):
            if name not in state.nodes:
                self.admit(name)
            elif state.nodes[name].drained:
                self._do(ResumeNode(name), "resumes", name)
        for job in list(state.jobs.values()):
            if job.state is JobState.HELD:
                self._do(Steer(job.id, "release"), "releases", job.id)
            elif job.state is JobState.SUSPENDED:
                self._do(Steer(job.id, "resume"), "resumes", job.id)
