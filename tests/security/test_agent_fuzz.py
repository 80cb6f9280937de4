"""Random and hostile messages of one joined node: none ends the manager, none changes another node's records.

`GPUYARD_AGENT_FUZZ=SEED:CASES` replays a run. In the inner loop a few hundred cases, 2 000 in `make test`, 200 000 in
`make test-long`.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from gpuyard.service import agent_pace
from gpuyard.worlds.standalone import node_health
from tests.security.besieged import HONEST, LIAR, Besieged, Conversation
from tests.security.hostile_agent import Hostile

CASES = 200_000 if os.environ.get("GPUYARD_LONG") == "1" else 300 if os.environ.get("GPUYARD_QUICK") == "1" else 2_000
LOOK_EVERY = 250
JOBS_OF_THE_LIAR = 3


def chosen() -> tuple[int, int]:
    seed, _, cases = os.environ.get("GPUYARD_AGENT_FUZZ", "").partition(":")
    return int(seed) if seed else random.SystemRandom().randrange(1 << 32), int(cases) if cases else CASES


@pytest.fixture
def at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of rate have tests of their own: here they would only hide what comes through."""
    for name in ("REPORTS_PER_S", "PARCELS_PER_S", "PIECES_PER_S", "BYTES_PER_S", "SESSIONS_PER_MINUTE"):
        monkeypatch.setattr(agent_pace, name, 1 << 40)
    monkeypatch.setattr(node_health, "CHANGES_MS", 0)


class Siege:
    """One run of the fuzzer."""

    def __init__(self, seed: int, besieged: Besieged) -> None:
        self._rng = random.Random(seed)
        self._besieged = besieged
        self._conversation: Conversation | None = None
        self.case = 0
        self.sessions = 0

    async def run(self, cases: int) -> None:
        before = self._besieged.honest_records()
        for self.case in range(1, cases + 1):
            await self._one()
            self._besieged.lives()
            assert self._besieged.honest_records() == before, "records of honest nodes or their jobs have changed"
            assert self._told_of_use() <= {LIAR}, "it says how busy the GPUs of other nodes are"
            if self.case % LOOK_EVERY == 0 or self.case == cases:
                await self._look()
        if self._conversation is not None:
            await self._conversation.end()

    async def _one(self) -> None:
        besieged = self._besieged
        hostile = Hostile(self._rng, LIAR, besieged.attempts_on(LIAR), besieged.attempts_on(*HONEST))
        if self._conversation is not None and not self._conversation.over:
            await self._conversation.say(hostile.message())
            return
        if self._conversation is not None:
            await self._conversation.end()
        self._conversation, self.sessions = besieged.converse(), self.sessions + 1
        await self._conversation.say(hostile.hello(self._rng.choice(("i-1", "i-1", "i-2"))))

    def _told_of_use(self) -> set[str]:
        """The nodes of tasks of whose GPUs somebody has said how busy they are: honest agents here say nothing."""
        jobs = self._besieged.manager.state.jobs
        places = (jobs[job].tasks[task].place for job, task in self._besieged.manager.gpu_use() if job in jobs)
        return {place.node for place in places if place is not None}

    async def _look(self) -> None:
        """New work for the liar to lie about, and for others; honest nodes keep their leases."""
        besieged = self._besieged
        for machine in besieged.machines.values():
            machine.report()
        state = besieged.manager.state
        if len([job for job in state.jobs.values() if not job.over]) < len(besieged.honest_jobs) + JOBS_OF_THE_LIAR:
            await besieged.submit(LIAR)
        await besieged.goes_on()


async def besiege(seed: int, cases: int, folder: Path) -> None:
    besieged = Besieged(folder)
    await besieged.start()
    siege = Siege(seed, besieged)
    try:
        await siege.run(cases)
    except BaseException as error:
        command = f"GPUYARD_AGENT_FUZZ={seed}:{siege.case} python -m pytest tests/security/{Path(__file__).name}"
        error.add_note(f"replay: {command}")
        raise
    finally:
        await besieged.stop()
    besieged.reads_again()
    print(f"seed {seed}: {cases} messages in {siege.sessions} sessions, {besieged.manager.state.seq} entries")


@pytest.mark.slow
@pytest.mark.usefixtures("at_full_speed")
def test_hostile_messages_neither_end_the_manager_nor_change_what_is_not_theirs(tmp_path: Path) -> None:
    seed, cases = chosen()
    print(f"seed {seed}, {cases} messages")
    asyncio.run(besiege(seed, cases, tmp_path))
