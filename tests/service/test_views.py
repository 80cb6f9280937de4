"""What is shown of jobs and machines beyond their records."""

from __future__ import annotations

from gpuyard.model.reasons import Reason, Token
from gpuyard.service.moments import moment
from gpuyard.service.redact import Veil
from gpuyard.service.views import NO_OUTLOOK, Outlook, job_object, node_object
from gpuyard.wire.access import Caller, Grant, Role
from gpuyard.wire.rest import JobObject
from tests.worlds.standalone.yard import LEASE_MS, Yard

ADMIN = Caller("root", (Grant(Role.ADMIN),))
FULL = Outlook((Reason(Token.NOT_ENOUGH, "gpu", 0, 1000),))


def shown(yard: Yard, id: str, outlook: Outlook = NO_OUTLOOK) -> JobObject:
    return job_object(yard.job(id), Veil(yard.state, ADMIN), outlook)


def evicted(yard: Yard) -> str:
    id = yard.submit()
    yard.run(id)
    yard.wait(5_000)
    yard.evict(id, (0,), whole=True)
    yard.stopped(id)
    return id


def test_a_job_that_waits_again_says_why_it_waits_now_and_until_that_is_known_why_it_had_to_go() -> None:
    yard = Yard()
    id = evicted(yard)
    assert [why.token for why in shown(yard, id, FULL).why] == ["NotEnough"]
    assert [why.token for why in shown(yard, id).why][:1] == ["Reclaimed"]


def test_a_job_that_is_held_says_so_once() -> None:
    yard = Yard()
    id = yard.submit()
    yard.run(id)
    yard.steer("hold", id)
    yard.stopped(id)
    assert [why.token for why in shown(yard, id).why] == ["Held"]


def test_a_job_tells_its_first_start_and_that_of_the_run_it_is_in() -> None:
    yard = Yard()
    first_ms = yard.now_ms
    id = evicted(yard)
    assert shown(yard, id).run_started_at == moment(first_ms)
    yard.wait(60_000)
    yard.place(id)
    assert shown(yard, id).run_started_at is None
    again_ms = yard.now_ms
    yard.run(id)
    found = shown(yard, id)
    assert (found.started_at, found.run_started_at) == (moment(first_ms), moment(again_ms))


def test_a_machine_was_last_seen_when_it_was_not_when_that_was_noticed() -> None:
    yard = Yard()
    heard_ms = yard.now_ms
    yard.wait(LEASE_MS + 1)
    yard.tick()
    node, veil = yard.state.nodes["a"], Veil(yard.state, ADMIN)
    assert node.silent_since_ms == yard.now_ms
    assert node_object(yard.state, node, veil, heard_ms).last_seen_at == moment(heard_ms)
    restarted_ms = yard.now_ms + 1_000
    assert node_object(yard.state, node, veil, restarted_ms).last_seen_at == moment(yard.now_ms)
