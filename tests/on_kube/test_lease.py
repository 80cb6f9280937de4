"""Who leads: one at a time, whatever is lost on the way; and at once after somebody has stood down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuyard.kube import lease
from gpuyard.kube.lease import Alone, Leadership, is_held
from gpuyard.kubeapi.client import KubeClient
from gpuyard.platform.clock import boot_ms
from tests.kubeapi.scripted import HANG, NOTHING, Answer, Asked, Script, refused, serving

PATH = "/apis/coordination.k8s.io/v1/namespaces/sys/leases"
SOON_S = 10.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RETRY_MS", 20)
    monkeypatch.setattr(lease, "RENEW_MS", 800)
    monkeypatch.setattr(lease, "TRY_MS", 300)
    monkeypatch.setattr(lease, "DURATION_MS", 1_000)


class LeaseServer(Script):
    """Keeps one lease, by its version."""

    def __init__(self, spec: dict[str, Any] | None = None) -> None:
        super().__init__(Answer())
        self.spec = spec
        self.version = 1
        self.faults: list[Callable[[Callable[[], Answer]], Answer]] = []
        """Used up by writes, one by one."""

    def next(self, asked: Asked) -> Answer:
        self.asked.append(asked)
        if asked.method != "GET" and self.faults:
            return self.faults.pop(0)(lambda: self._do(asked))
        return self._do(asked)

    def _do(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return refused(404, "NotFound") if self.spec is None else self._found()
        if asked.method == "POST" and self.spec is not None:
            return refused(409, "AlreadyExists")
        if asked.method == "PUT" and asked.body["metadata"]["resourceVersion"] != str(self.version):
            return refused(409, "Conflict")
        self.spec = asked.body["spec"]
        self.version += 1
        return self._found()

    def _found(self) -> Answer:
        metadata = {"name": "gpuyard-scheduler", "namespace": "sys", "resourceVersion": str(self.version)}
        return Answer(200, {"metadata": metadata, "spec": self.spec})

    @property
    def holder(self) -> str:
        return str((self.spec or {}).get("holderIdentity"))


def lost(do: Callable[[], Answer]) -> Answer:
    do()
    return NOTHING


class Office:
    """Those who want to lead."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.said: list[str] = []
        self.running: list[asyncio.Task[None]] = []

    def candidate(self, name: str) -> Leadership:
        found = Leadership(self.client, "sys", name, self.said.append)
        self.running.append(asyncio.create_task(found.run()))
        return found


@asynccontextmanager
async def an_office(server: Script) -> AsyncIterator[Office]:
    async with serving(server) as client, asyncio.timeout(SOON_S):
        office = Office(client)
        try:
            yield office
        finally:
            for task in office.running:
                task.cancel()
            await asyncio.gather(*office.running, return_exceptions=True)


def in_office(server: Script, do: Callable[[Office], Awaitable[None]]) -> None:
    async def talk() -> None:
        async with an_office(server) as office:
            await do(office)

    asyncio.run(talk())


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.002)


# ------------------------------------------------------------------------------------------------------------ one leads


def test_the_first_leads_and_the_second_waits() -> None:
    async def do(office: Office) -> None:
        first = office.candidate("first")
        await until(first.holds)
        second = office.candidate("second")
        await until(second.tried.is_set)
        await asyncio.sleep(1.5)
        assert first.holds()
        assert not second.holds()
        assert second.holder == "first"
        assert office.said == ["first leads"]

    in_office(LeaseServer(), do)


def test_of_many_who_come_at_once_one_leads() -> None:
    async def do(office: Office) -> None:
        all_ = [office.candidate(f"c{number}") for number in range(8)]
        for one in all_:
            await until(one.tried.is_set)
        assert sum(one.holds() for one in all_) == 1

    in_office(LeaseServer(), do)


def test_a_lease_that_nobody_renews_is_over_after_its_duration_as_we_watched_it() -> None:
    """Times that are written in it count for nothing: they are of another machine's clock."""
    spec = {"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": "2999-01-01T00:00:00.000000Z"}

    async def do(office: Office) -> None:
        began_ms = boot_ms()
        heir = office.candidate("heir")
        await until(heir.holds)
        assert boot_ms() - began_ms >= 1_000
        assert heir.gained_at_ms >= began_ms + 1_000

    in_office(LeaseServer(spec), do)


def test_who_stood_down_lets_the_next_lead_at_once_and_leads_no_more() -> None:
    async def do(office: Office) -> None:
        first = office.candidate("first")
        await until(first.holds)
        second = office.candidate("second")
        await until(second.tried.is_set)
        first.stand_down()
        assert not first.holds()
        began_ms = boot_ms()
        await first.release()
        await until(second.holds)
        assert boot_ms() - began_ms < 1_000
        assert not first.holds()

    server = LeaseServer()
    in_office(server, do)
    assert server.holder == "second"


def test_who_stands_down_while_it_renews_gives_back_what_it_has_renewed() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        renewed = server.version
        await until(lambda: server.version > renewed)
        leader.stand_down()
        await leader.release()
        assert server.holder == ""
        await asyncio.sleep(0.1)
        assert server.holder == ""

    in_office(server, do)


# ----------------------------------------------------------------------------------------------------------- what fails


def test_a_renewal_whose_answer_is_lost_is_no_loss_of_the_lead() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        server.faults = [lost, lost]
        renewed = server.version
        await until(lambda: server.version > renewed + 3)
        assert leader.holds()
        assert "leader leads no longer" not in office.said

    in_office(server, do)


def test_a_server_that_fails_for_longer_than_the_renewal_ends_the_lead_and_it_is_told_once() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        server.faults = [lambda do: refused(500, message="etcd is away")] * 1_000
        await until(lambda: not leader.holds())
        await until(lambda: "leader leads no longer" in office.said)
        assert not leader.gained.is_set()
        assert sum("etcd is away" in line for line in office.said) == 1
        server.faults = []
        await until(leader.holds)

    in_office(server, do)


def test_a_server_that_hangs_is_not_waited_for_beyond_the_next_try() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        server.faults = [lambda do: Answer(200, HANG)]
        renewed = server.version
        await until(lambda: server.version > renewed + 2)
        assert leader.holds()

    in_office(server, do)


def test_who_was_stopped_for_too_long_knows_it_before_it_asks_anybody(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        asked = len(server.asked)
        monkeypatch.setattr(lease, "boot_ms", lambda: boot_ms() + 60_000)
        assert not leader.holds()
        assert len(server.asked) == asked

    in_office(server, do)


def test_who_was_replaced_meanwhile_does_not_lead() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        server.spec = {"holderIdentity": "usurper", "leaseDurationSeconds": 3600}
        server.version += 1
        await until(lambda: not leader.holds())
        await until(lambda: "leader leads no longer" in office.said)
        assert server.holder == "usurper"

    in_office(server, do)


def test_a_lease_that_somebody_deleted_is_made_again() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        server.spec = None
        await until(lambda: server.spec is not None)
        assert leader.holds()

    in_office(server, do)


# --------------------------------------------------------------------------------------------------------------- others


def test_alone_leads_until_it_stands_down() -> None:
    async def do() -> None:
        alone = Alone()
        assert alone.holds()
        assert alone.tried.is_set()
        alone.stand_down()
        assert not alone.holds()

    asyncio.run(do())


def test_alone_shows_itself_on_the_lease_and_gives_it_back() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        alone = Alone(Leadership(office.client, "sys", "hermit", print, annotations={"how": "so"}))
        running = asyncio.create_task(alone.run())
        await until(lambda: server.spec is not None)
        assert server.asked[-1].body["metadata"]["annotations"] == {"how": "so"}
        alone.stand_down()
        await running
        await alone.release()
        assert (server.spec or {})["holderIdentity"] == ""

    in_office(server, do)


def test_alone_leads_though_somebody_else_keeps_the_lease_and_leaves_it_to_them() -> None:
    server = LeaseServer()

    async def do(office: Office) -> None:
        leader = office.candidate("leader")
        await until(leader.holds)
        alone = Alone(Leadership(office.client, "sys", "hermit", print))
        running = asyncio.create_task(alone.run())
        await asyncio.sleep(0.2)
        assert (alone.holds(), leader.holds()) == (True, True)
        assert (server.spec or {})["holderIdentity"] == "leader"
        alone.stand_down()
        await running
        await alone.release()
        assert (server.spec or {})["holderIdentity"] == "leader"

    in_office(server, do)


@pytest.mark.parametrize("spec", [None, {"holderIdentity": ""}, {"holderIdentity": "dead", "leaseDurationSeconds": 1}])
def test_a_lease_that_nobody_keeps_is_not_held(spec: dict[str, Any] | None) -> None:
    async def do(office: Office) -> None:
        assert await is_held(office.client, "sys", "gpuyard-scheduler") == ""

    in_office(LeaseServer(spec), do)


def test_a_lease_that_is_renewed_while_we_watch_is_held() -> None:
    async def do(office: Office) -> None:
        leader = office.candidate("kai")
        await until(leader.holds)
        assert await is_held(office.client, "sys", "gpuyard-scheduler") == "kai"

    in_office(LeaseServer(), do)


def test_an_answer_that_makes_no_sense_ends_nothing() -> None:
    server = LeaseServer()
    server.faults = [lambda do: Answer(201, b"<html>"), lambda do: Answer(200, {"metadata": 7})]

    async def do(office: Office) -> None:
        one = office.candidate("one")
        await until(one.holds)
        assert any("cannot be read" in said for said in office.said)

    in_office(server, do)
