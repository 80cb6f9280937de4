"""Carrying out errands through everything that can go wrong: nothing twice, nothing by who does not lead."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from gpuyard.kubeapi.client import KubeClient
from gpuyard.kubeapi.rate import Rate
from gpuyard.model.reasons import Reason, Token
from gpuyard.worlds.kubernetes import writer as module
from gpuyard.worlds.kubernetes.volumes import SELECTED_NODE, Given
from gpuyard.worlds.kubernetes.writer import Writer
from gpuyard.worlds.kubernetes.writes import BindPod, Errand, EvictPod, NominateNode, PodName, SavePlaces
from tests.kubeapi.scripted import HANG, Answer, Asked, refused, serving
from tests.worlds.kubernetes.pods_server import PodServer, lost, no, unheard

WAIT_S = 20.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIRST_RETRY_MS", 1)
    monkeypatch.setattr(module, "MOST_RETRY_MS", 4)


class Heard:
    """A listener, and whether it leads."""

    def __init__(self) -> None:
        self.leads = True
        self.words: list[str] = []
        self.why = ""

    def bound(self, write: BindPod) -> None:
        self.words.append(f"bound {write.pod.name} {write.node}")

    def bind_failed(self, write: BindPod, why: str) -> None:
        self.words.append(f"not bound {write.pod.name}")
        self.why = why

    def note_failed(self, write: NominateNode, why: str) -> None:
        self.words.append(f"not noted {write.pod.name}")
        self.why = why

    def evicted(self, write: EvictPod) -> None:
        self.words.append(f"evicted {write.pod.name}")

    def eviction_failed(self, write: EvictPod, why: str, *, forbidden: bool) -> None:
        self.words.append(f"stays {write.pod.name}{' by order' if forbidden else ''}")
        self.why = why

    def deposed(self) -> None:
        self.words.append("deposed")


class Desk:
    """A writer at work."""

    def __init__(self, writer: Writer, heard: Heard) -> None:
        self.writer = writer
        self.heard = heard

    async def hears(self, count: int = 1) -> list[str]:
        async with asyncio.timeout(WAIT_S):
            while len(self.heard.words) < count:
                await asyncio.sleep(0.001)
        # What should not follow would follow soon.
        await asyncio.sleep(0.02)
        return self.heard.words


def at_work(server: PodServer, do: Callable[[Desk], Awaitable[None]]) -> Heard:
    heard = Heard()

    async def talk() -> None:
        async with serving(server) as served:
            client = KubeClient(served.access, tries=1)
            writer = Writer(client, Rate(10_000, 10_000), "sys", heard, lambda: heard.leads)
            running = asyncio.create_task(writer.run())
            try:
                await do(Desk(writer, heard))
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await client.close()

    asyncio.run(talk())
    return heard


def put(server: PodServer, *errands: Errand, words: int = 1) -> Heard:
    """Everything that is heard of these errands."""

    async def do(desk: Desk) -> None:
        for errand in errands:
            desk.writer.put(errand)
        await desk.hears(words)

    return at_work(server, do)


def a_bind(name: str, node: str = "n1", **more: Any) -> BindPod:
    return BindPod(f"a/pod/{name}", PodName("a", name, f"uid-{name}"), node, **more)


def an_eviction(name: str, beneficiary: str = "a/pod/winner") -> EvictPod:
    reason = Reason(Token.PREEMPTED, beneficiary=beneficiary)
    return EvictPod(f"a/pod/{name}", PodName("a", name, f"uid-{name}"), "n1", reason, "because")


def a_note(name: str, node: str = "n1") -> NominateNode:
    return NominateNode(f"a/pod/{name}", PodName("a", name, f"uid-{name}"), node)


def bind(server: PodServer, name: str = "p") -> Heard:
    return put(server, Errand(deeds=(a_bind(name),)))


def evict(server: PodServer, name: str = "p") -> Heard:
    return put(server, Errand(deeds=(an_eviction(name),)))


def with_pod(name: str = "p", **about: str) -> PodServer:
    server = PodServer()
    server.add(name, **about)
    return server


# --------------------------------------------------------------------------------------------------------------- binds


def test_a_pod_is_bound_once_and_told() -> None:
    server = with_pod()
    assert bind(server).words == ["bound p n1"]
    assert server.done == ["binding p"]


@pytest.mark.parametrize("fault", [no(500), no(503), no(429), no(504), unheard])
def test_a_bind_that_fails_for_a_moment_is_tried_again(fault: Any) -> None:
    server = with_pod()
    server.faults["binding"] = [fault, fault]
    assert bind(server).words == ["bound p n1"]
    assert server.done == ["binding p"]


def test_a_bind_whose_answer_is_lost_is_found_out_about() -> None:
    server = with_pod()
    server.faults["binding"] = [lost]
    assert bind(server).words == ["bound p n1"]
    assert server.asked_for("binding") == 1


def test_a_place_is_not_given_up_while_nobody_can_say_whether_the_pod_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BIND_MS", 0)
    server = with_pod()
    server.faults["binding"] = [lost, *[unheard] * 9]
    server.faults["get"] = [unheard] * 20
    assert bind(server).words == ["bound p n1"]


def test_a_bind_that_keeps_failing_is_given_up_once_the_pod_was_seen_without_a_node(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "BIND_MS", 20)
    server = with_pod()
    server.faults["binding"] = [no(500, message="webhook is out")] * 1000
    heard = bind(server)
    assert heard.words == ["not bound p"]
    assert "webhook is out" in heard.why


@pytest.mark.parametrize("status", [400, 403, 422])
def test_a_bind_that_is_forbidden_is_not_tried_again(status: int) -> None:
    server = with_pod()
    server.faults["binding"] = [no(status, message="not this one")]
    heard = bind(server)
    assert heard.words == ["not bound p"]
    assert "not this one" in heard.why
    assert server.asked_for("binding") == 1


def test_another_pod_of_the_same_name_is_not_bound() -> None:
    server = with_pod(uid="another")
    heard = bind(server)
    assert (heard.words, heard.why) == (["not bound p"], "the pod is gone")
    assert server.node_of("p") == ""


def test_a_pod_that_is_gone_is_told_so() -> None:
    heard = bind(PodServer())
    assert (heard.words, heard.why) == (["not bound p"], "the pod is gone")


@pytest.mark.parametrize(("node", "word"), [("n1", "bound p n1"), ("n2", "not bound p")])
def test_of_a_pod_that_was_bound_already_it_counts_where(node: str, word: str) -> None:
    assert bind(with_pod(node=node)).words == [word]


def test_an_answer_that_makes_no_sense_ends_nothing() -> None:
    server = with_pod()
    server.faults["binding"] = [no(500)]
    server.faults["get"] = [lambda do: Answer(200, b"<html>")]
    assert bind(server).words == ["bound p n1"]


def dooming(monkeypatch: pytest.MonkeyPatch, names: list[str], answer: Answer) -> PodServer:
    """A server that answers every bind of these pods so; one other pod is fine."""
    server = PodServer()
    for name in (*names, "fine"):
        server.add(name)
    genuine = server.next

    def next_answer(asked: Asked) -> Answer:
        return answer if "doomed" in asked.path and "binding" in asked.path else genuine(asked)

    monkeypatch.setattr(server, "next", next_answer)
    return server


@pytest.mark.parametrize("failures", [0, 1])
def test_binds_that_fail_or_failed_before_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
    names = [f"doomed-{number}" for number in range(100)]
    server = dooming(monkeypatch, names, refused(500))

    async def do(desk: Desk) -> None:
        desk.writer.put(Errand(deeds=tuple(a_bind(name, failures=failures) for name in names)))
        await asyncio.sleep(0.1)
        desk.writer.put(Errand(deeds=(a_bind("fine"),)))
        assert await desk.hears() == ["bound fine n1"]

    at_work(server, do)


def test_binds_that_hang_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a webhook that does not answer: more of them than there are workers."""
    monkeypatch.setattr(module, "PATIENCE_MS", 20)
    names = [f"doomed-{number}" for number in range(3 * module.WORKERS)]
    server = dooming(monkeypatch, names, Answer(201, HANG))

    async def do(desk: Desk) -> None:
        desk.writer.put(Errand(deeds=tuple(map(a_bind, names))))
        desk.writer.put(Errand(deeds=(a_bind("fine"),)))
        assert await desk.hears() == ["bound fine n1"]

    at_work(server, do)


# ----------------------------------------------------------------------------------------------------------- evictions


def test_a_pod_is_marked_evicted_and_told() -> None:
    server = with_pod()
    assert evict(server).words == ["evicted p"]
    assert server.done == ["status p", "eviction p"]


@pytest.mark.parametrize("fault", [no(500), no(503), no(429), no(409), unheard])
@pytest.mark.parametrize("about", ["status", "eviction"])
def test_an_eviction_that_fails_for_a_moment_is_tried_again(about: str, fault: Any) -> None:
    server = with_pod()
    server.faults[about] = [fault, fault]
    assert evict(server).words == ["evicted p"]
    assert server.done.count("eviction p") == 1


def test_an_eviction_whose_answer_is_lost_is_told_all_the_same() -> None:
    server = with_pod()
    server.faults["eviction"] = [lost]
    assert evict(server).words == ["evicted p"]


@pytest.mark.parametrize("there", ["", "another"])
def test_a_pod_that_is_gone_anyway_was_not_evicted(there: str) -> None:
    server = with_pod(uid=there) if there else PodServer()

    async def do(desk: Desk) -> None:
        desk.writer.put(Errand(deeds=(an_eviction("p"),)))
        server.add("q")
        desk.writer.put(Errand(deeds=(a_bind("q"),)))
        assert await desk.hears() == ["bound q n1"]

    at_work(server, do)


def test_an_eviction_that_a_budget_forbids_is_asked_for_a_while_and_then_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "EVICT_MS", 30)
    server = with_pod()
    server.faults["eviction"] = [no(429, "TooManyRequests", "Cannot evict pod")] * 1000

    async def do(desk: Desk) -> None:
        desk.writer.put(Errand(deeds=(an_eviction("p"),)))
        assert await desk.hears() == ["stays p by order"]

    assert "Cannot evict pod" in at_work(server, do).why
    (condition,) = server.pods["a/p"]["status"]["conditions"]
    assert (condition["type"], condition["status"], condition["reason"]) == (module.GIVES_WAY, "False", "Stays")
    assert server.asked_for("status") == 2, "it is marked once, however often it is asked for"


def test_an_eviction_that_is_forbidden_for_good_is_not_asked_for_again() -> None:
    server = with_pod()
    server.faults["eviction"] = [no(403)]
    assert evict(server).words == ["stays p by order"]
    assert server.asked_for("eviction") == 1


def test_evictions_that_a_budget_forbids_keep_nobody_waiting() -> None:
    server = PodServer()
    names = [f"protected-{number}" for number in range(100)]
    for name in (*names, "fine"):
        server.add(name)
    server.faults["eviction"] = [no(429)] * 10_000

    async def do(desk: Desk) -> None:
        desk.writer.put(Errand(deeds=tuple(an_eviction(name) for name in names)))
        await asyncio.sleep(0.1)
        desk.writer.put(Errand(deeds=(a_bind("fine"),)))
        assert await desk.hears() == ["bound fine n1"]

    at_work(server, do)


# --------------------------------------------------------------------------------------------------------------- notes


def an_errand() -> Errand:
    return Errand((a_note("winner"),), (an_eviction("p"),))


def test_nobody_is_evicted_before_it_is_noted_for_whom() -> None:
    server = with_pod()
    server.add("winner")
    assert put(server, an_errand()).words == ["evicted p"]
    assert server.done == ["status winner", "status p", "eviction p"]
    assert server.pods["a/winner"]["status"]["nominatedNodeName"] == "n1"


def test_nobody_is_evicted_for_a_pod_whose_note_is_refused() -> None:
    server = with_pod()
    assert put(server, an_errand(), words=2).words == ["not noted winner", "stays p"]
    assert server.asked_for("eviction") == 0


def test_nobody_is_moved_whose_place_could_not_be_kept() -> None:
    server = with_pod()
    server.faults["configmaps"] = [no(403)]
    heard = put(server, Errand((SavePlaces((), ()),), (an_eviction("p"),)))
    assert heard.words == ["stays p"]
    assert server.done == []


def test_places_are_written_in_the_order_they_were_decided() -> None:
    server = with_pod()
    server.add("q")
    server.faults["configmaps"] = [no(500), no(503), unheard]
    first, second = SavePlaces((), (1,)), SavePlaces((), (1, 2))
    put(server, Errand((first,)), Errand((second,), (an_eviction("q"),)))
    (kept,) = server.maps.values()
    assert kept["data"]["places.json"] == '{"places":[],"moves_ms":[1,2]}'


def test_notes_about_the_same_pod_are_written_in_the_order_they_were_decided() -> None:
    """The first fails for a moment; were the second written meanwhile, the first would then stand over it."""
    server = with_pod()
    server.add("winner")
    server.faults["status"] = [no(500), no(503), unheard]
    put(server, Errand((a_note("winner", ""),)), Errand((a_note("winner", "n2"),), (an_eviction("p"),)))
    assert server.pods["a/winner"]["status"]["nominatedNodeName"] == "n2"


# ---------------------------------------------------------------------------------------------------------- leadership


def test_who_does_not_lead_writes_nothing() -> None:
    server = with_pod()

    async def do(desk: Desk) -> None:
        desk.heard.leads = False
        desk.writer.put(Errand(deeds=(a_bind("p"), an_eviction("p"))))
        desk.writer.put(Errand((a_note("p"),)))
        assert await desk.hears(3) == ["deposed"] * 3

    at_work(server, do)
    assert server.asked == []


def test_who_loses_the_lead_in_the_middle_of_a_bind_goes_no_further() -> None:
    server = with_pod()

    async def do(desk: Desk) -> None:
        def lose(then: Callable[[], Answer]) -> Answer:
            desk.heard.leads = False
            return refused(500)

        server.faults["binding"] = [lose]
        desk.writer.put(Errand(deeds=(a_bind("p"),)))
        assert await desk.hears() == ["deposed"]

    at_work(server, do)
    assert server.asked_for("binding") == 1


def test_what_was_decided_in_an_earlier_term_is_not_done_in_a_later_one() -> None:
    """The place may have gone to somebody else in between."""
    server = with_pod()
    server.add("q")

    async def do(desk: Desk) -> None:
        server.faults["binding"] = [no(500)] * 1000
        server.faults["get"] = [unheard] * 1000
        desk.writer.put(Errand(deeds=(a_bind("p"),)))
        while server.asked_for("binding") < 3:
            await asyncio.sleep(0.001)
        await desk.writer.drop_all()
        del server.faults["binding"], server.faults["get"]
        desk.writer.put(Errand(deeds=(a_bind("q"),)))
        assert await desk.hears() == ["bound q n1"]

    at_work(server, do)
    assert server.node_of("p") == ""


def test_whoever_begins_a_new_term_waits_for_the_last_requests_of_the_old_one() -> None:
    server = with_pod()

    async def do(desk: Desk) -> None:
        def while_dropped(then: Callable[[], Answer]) -> Answer:
            dropped.append(asyncio.ensure_future(desk.writer.drop_all()))
            return then()

        dropped: list[asyncio.Future[None]] = []
        server.faults["binding"] = [while_dropped]
        desk.writer.put(Errand(deeds=(a_bind("p"),)))
        while not dropped:
            await asyncio.sleep(0.001)
        await dropped[0]
        assert server.node_of("p") == "n1"

    at_work(server, do)


def test_words_wait_until_all_deeds_are_done() -> None:
    server = PodServer()
    done_before: list[int] = []
    for number in range(30):
        server.add(f"p{number}")

    async def say() -> None:
        done_before.append(len(server.done))

    async def do(desk: Desk) -> None:
        desk.writer.say(say)
        desk.writer.put(Errand(deeds=tuple(a_bind(f"p{number}") for number in range(30))))
        await desk.hears(30)

    at_work(server, do)
    assert done_before[0] >= 30 - module.WORKERS, "of the others each is a worker's last"


# -------------------------------------------------------------------------------------------------------------- volumes


class VolumeServer(PodServer):
    """With claims that are bound as soon as they have been told or given what they wait for, and one disk."""

    def __init__(self) -> None:
        super().__init__()
        self.add("p")
        self.disk: dict[str, Any] = {"metadata": {"name": "disk", "resourceVersion": "7"}, "spec": {}}
        self.told: dict[str, str] = {}

    def _do(self, asked: Asked, about: str) -> Answer:
        name = asked.path.rsplit("/", 1)[-1]
        if asked.path == "/api/v1/persistentvolumes/disk":
            return self._change_disk(asked.body)
        if "/persistentvolumeclaims/" not in asked.path:
            return super()._do(asked, about)
        if asked.method == "PATCH":
            self.told[name] = asked.body["metadata"]["annotations"][SELECTED_NODE]
        given = self.disk["spec"].get("claimRef", {}).get("name")
        phase = "Bound" if name in self.told or name == given else "Pending"
        return Answer(200, {"metadata": {"name": name, "namespace": "a"}, "status": {"phase": phase}})

    def _change_disk(self, body: dict[str, Any]) -> Answer:
        if body["metadata"]["resourceVersion"] != self.disk["metadata"]["resourceVersion"]:
            return refused(409, "Conflict", "the object has been modified")
        self.disk["metadata"] |= {"resourceVersion": "8", "annotations": body["metadata"]["annotations"]}
        self.disk["spec"] |= body["spec"]
        return Answer(200, self.disk)


DISK = Given("data", "uid-of-data", "disk", "7")


def test_a_claim_is_told_the_node_before_its_pod_is_bound() -> None:
    server = VolumeServer()
    assert put(server, Errand(deeds=(a_bind("p", claims=("data",)),))).words == ["bound p n1"]
    assert server.told == {"data": "n1"}


def test_a_disk_that_lies_ready_is_given_to_the_claim_before_the_pod_is_bound() -> None:
    server = VolumeServer()
    assert put(server, Errand(deeds=(a_bind("p", given=(DISK,)),))).words == ["bound p n1"]
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "a", "name": "data"}
    assert server.disk["spec"]["claimRef"] == {**claim, "uid": "uid-of-data"}
    assert server.disk["metadata"]["annotations"] == {"pv.kubernetes.io/bound-by-controller": "yes"}
    assert server.told == {}


def test_a_disk_somebody_has_changed_meanwhile_is_left_to_them() -> None:
    server = VolumeServer()
    server.disk["metadata"]["resourceVersion"] = "8"
    heard = put(server, Errand(deeds=(a_bind("p", given=(DISK,)),)))
    assert heard.words == ["not bound p"]
    assert "has been modified" in heard.why
    assert server.disk["spec"] == {}
    assert server.node_of("p") == ""


def test_a_pod_whose_volume_never_comes_is_not_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "VOLUME_MS", 30)
    server = VolumeServer()
    server.faults["persistentvolumeclaims"] = [lambda do: Answer(200, {})]
    heard = put(server, Errand(deeds=(a_bind("p", claims=("data",)),)))
    assert heard.words == ["not bound p"]
    assert "were not made within" in heard.why
