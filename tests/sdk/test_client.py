"""The client against a real HTTP server: what it sends, what it makes of answers, what it does when things break."""

import asyncio
import inspect
import threading
from itertools import islice
from pathlib import Path

import msgspec
import pytest
from starlette.responses import PlainTextResponse

from gpuyard import errors
from gpuyard.files.format import WorkSpec
from gpuyard.sdk import calls
from gpuyard.sdk.async_client import AsyncClient
from gpuyard.sdk.bodies import JobRequest, TeamChange, TeamsChange, YamlText
from gpuyard.sdk.client import Client
from gpuyard.sdk.transport import Server
from gpuyard.service.certificates import Authority
from gpuyard.wire.operations import OPERATIONS
from tests.sdk.conftest import FAST
from tests.sdk.yard import TOKEN, ProblemError, Yard, a_job, an_event, busy, served

pytestmark = pytest.mark.slow

LISTS = {
    "list_jobs": "jobs",
    "list_schedules": "schedules",
    "list_teams": "teams",
    "list_nodes": "nodes",
    "list_devices": "devices",
    "list_events": "events",
    "list_audit": "audit",
    "usage": "usage_rows",
    "list_users": "users",
    "list_tokens": "tokens",
    "read_logs": "logs",
    "list_pool_machines": "pool_machines",
    "list_pool_budgets": "pool_budgets",
    "list_pool_jobs": "pool_jobs",
    "list_pool_plans": "pool_plans",
}


def methods(client: type) -> dict[str, inspect.Signature]:
    found = inspect.getmembers(client, inspect.isfunction)
    return {name: inspect.signature(function) for name, function in found if not name.startswith("_")}


# ----------------------------------------------------------------------------------------------------------- the table


def test_every_operation_has_a_method() -> None:
    for operation in OPERATIONS:
        assert LISTS.get(operation.name, operation.name) in methods(Client)


def test_both_clients_have_the_same_methods() -> None:
    sync, other = methods(Client), methods(AsyncClient)
    assert sync.keys() == other.keys()
    for name, signature in sync.items():
        assert list(signature.parameters.values()) == list(other[name].parameters.values()), name
        expected = str(signature.return_annotation).replace("Iterator[", "AsyncIterator[")
        assert expected == str(other[name].return_annotation), name


def test_a_job_request_has_all_fields_of_a_job_file() -> None:
    assert set(JobRequest.__struct_fields__) == set(WorkSpec.__struct_fields__)


# ------------------------------------------------------------------------------------------------------------ requests


def test_a_job_is_sent_with_the_fields_that_were_given_and_a_key(client: Client, yard: Yard) -> None:
    submitted = client.submit_job(JobRequest(command=["python", "train.py"], gpus="0.5", team="vision"))
    assert submitted.jobs[0].id == "1"
    asked = yard.asked[0]
    assert asked.json == {"command": ["python", "train.py"], "gpus": "0.5", "team": "vision"}
    assert asked.headers["authorization"] == f"Bearer {TOKEN}"
    assert len(asked.headers["idempotency-key"]) == 32
    assert TOKEN not in str((asked.path, asked.query))


def test_a_file_travels_as_it_was_written(client: Client, yard: Yard) -> None:
    client.submit_job(YamlText("command: date # now\n"), dry_run=True)
    assert yard.asked[0].body == b"command: date # now\n"
    assert yard.asked[0].headers["content-type"] == "application/yaml"
    assert yard.asked[0].query == {"dry_run": "true"}


def test_a_change_may_be_bound_to_a_revision(client: Client, yard: Yard) -> None:
    yard.add(a_job("17", revision=5))
    assert client.cancel_job("17", if_revision=5).state == "cancelled"
    with pytest.raises(errors.ConflictError, match="it is at revision 5"):
        client.hold_job("17", if_revision=4)


def test_names_are_escaped_in_paths(client: Client, yard: Yard) -> None:
    with pytest.raises(errors.NotFoundError):
        client.get_node("a b%2f?x=1")
    assert yard.asked[0].path == {"name": "a b%2f?x=1"}
    for name in ("", ".", ".."):
        with pytest.raises(errors.MalformedError):
            client.get_node(name)


def test_a_team_is_changed_by_what_is_given(client: Client, yard: Yard) -> None:
    changed = client.change_teams(TeamsChange({"vision": TeamChange(quota="8")}), dry_run=True)
    assert changed.dry_run
    assert yard.asked[0].json == {"queues": {"vision": {"quota": "8"}}}


def test_all_pages_of_a_list_are_read(client: Client, yard: Yard) -> None:
    for number in range(25):
        yard.add(a_job(str(number)))
    yard.page_size = 10
    assert len(list(client.jobs(state="active", labels={}))) == 25
    assert [asked.query.get("cursor") for asked in yard.asked] == [None, "10", "20"]


def test_an_answer_can_be_had_verbatim(client: Client, yard: Yard) -> None:
    yard.add(a_job("17"))
    raw = client.send(calls.get_job("17").verbatim())
    assert bytes(raw) == msgspec.json.encode(yard.jobs["17"])
    items = list(client.items(calls.list_jobs().verbatim()))
    assert msgspec.json.decode(items[0])["id"] == "17"


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.MalformedError),
        (401, errors.NotSignedInError),
        (403, errors.NotAllowedError),
        (404, errors.NotFoundError),
        (409, errors.ConflictError),
        (412, errors.ConflictError),
        (422, errors.RejectedError),
        (500, errors.ClientError),
    ],
)
def test_every_refusal_has_its_kind_and_its_words(
    client: Client, yard: Yard, status: int, kind: type[errors.ClientError]
) -> None:
    yard.problems.append(ProblemError(status, "SomeReason", "what is wrong", "what to do", "gpus"))
    with pytest.raises(errors.ClientError) as caught:
        client.status()
    assert type(caught.value) is kind
    assert (caught.value.status, caught.value.reason, caught.value.field) == (status, "SomeReason", "gpus")
    assert str(caught.value) == "what is wrong\n  what to do"


def test_an_answer_that_is_not_ours_is_told(client: Client, yard: Yard) -> None:
    yard.problems.append(PlainTextResponse("<html>", 404))
    with pytest.raises(errors.NotFoundError, match="not as gpuyard does"):
        client.status()
    yard.problems.append(PlainTextResponse("<html>"))
    with pytest.raises(errors.ClientError, match="not what this version knows"):
        client.status()


# -------------------------------------------------------------------------------------------------------------- breaks


def test_a_busy_server_is_asked_again_with_the_same_key(client: Client, yard: Yard) -> None:
    yard.problems += [busy(), busy()]
    client.submit_job(JobRequest(command="date"))
    keys = {asked.headers["idempotency-key"] for asked in yard.asked}
    assert (len(yard.asked), len(keys)) == (3, 1)


def test_what_could_be_done_twice_is_not_repeated(client: Client, yard: Yard) -> None:
    yard.problems += [busy(), busy()]
    with pytest.raises(errors.ClientError):
        client.remove_user("ann")
    assert len(yard.asked) == 1


def test_a_server_that_stays_busy_is_given_up(client: Client, yard: Yard) -> None:
    yard.problems += [busy() for _ in range(10)]
    with pytest.raises(errors.ClientError):
        client.status()
    assert len(yard.asked) == FAST.attempts


def test_no_server_is_told_with_the_way_out() -> None:
    with (
        Client("http://127.0.0.1:9", retry=FAST) as client,
        pytest.raises(errors.UnreachableError, match="no server answers") as caught,
    ):
        client.status()
    assert "gpuyard up" in caught.value.fix


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://x", "http://", "http://h:99999", "http://u:p@h", "http://[::"]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(errors.InputError):
        Client(url)


def test_a_token_that_is_none_is_refused_and_never_shown() -> None:
    with pytest.raises(errors.NotSignedInError) as caught:
        Client("http://localhost", "two words")
    assert "two words" not in str(caught.value)
    assert "secret" not in repr(Server("http://localhost", "secret"))


def test_a_certificate_must_be_of_the_authority_that_was_named(yard: Yard, tmp_path: Path) -> None:
    authority = Authority.in_folder(tmp_path / "ca", "lab")
    pair = authority.server(("127.0.0.1",))
    certificate = tmp_path / "server.pem"
    certificate.write_bytes(pair.certificate + pair.key)
    with served(yard, certificate) as url:
        with Client(url, TOKEN, ca=str(tmp_path / "ca" / "ca.pem")) as client:
            assert client.status().cluster == "lab"
        with (
            Client(url, TOKEN, retry=FAST) as client,
            pytest.raises(errors.UnreachableError, match="not one this machine"),
        ):
            client.status()
        plain = url.replace("https:", "http:")
        with Client(plain, TOKEN, retry=FAST) as client, pytest.raises(errors.UnreachableError) as caught:
            client.status()
        assert "https://" in caught.value.fix
    with pytest.raises(errors.UnreachableError, match="cannot be used"):
        Client(url, TOKEN, ca=str(tmp_path / "absent.pem"))
    # Nobody who was not trusted has seen the token.
    assert len(yard.asked) == 1


# ------------------------------------------------------------------------------------------------------------- streams


def test_events_go_on_where_the_stream_broke(client: Client, yard: Yard) -> None:
    yard.events = [an_event(revision) for revision in range(1, 7)]
    yard.break_events_after = 2
    assert [event.revision for event in islice(client.watch(after=1), 5)] == [2, 3, 4, 5, 6]
    opened = [asked.headers["last-event-id"] for asked in yard.asked]
    assert opened == ["1", "3"]


def test_watching_begins_now_and_misses_nothing_even_if_the_stream_breaks_at_once(client: Client, yard: Yard) -> None:
    yard.events = [an_event(4)]
    yard.break_events_after = 0
    threading.Timer(0.1, lambda: yard.events.extend([an_event(5), an_event(6)])).start()
    assert [event.revision for event in islice(client.watch(object="job/17"), 2)] == [5, 6]
    assert {asked.headers.get("last-event-id") for asked in yard.asked} == {None, "4"}


def test_a_followed_log_goes_on_where_it_broke_and_ends_with_its_attempt(client: Client, yard: Yard) -> None:
    yard.add(a_job("17"))
    yard.logs[("17", 0, 1)] = [b"one\n", b"two\n", b"three\n"]
    yard.break_log_after = 1
    yard.after_log = lambda id: yard.jobs.update({id: a_job(id, state="succeeded")})
    assert b"".join(client.logs("17", follow=True)) == b"one\ntwo\nthree\n"


def test_the_end_of_a_log_can_be_read(client: Client, yard: Yard) -> None:
    yard.add(a_job("17", state="succeeded"))
    yard.logs[("17", 0, 1)] = [b"one\n", b"two\n"]
    assert b"".join(client.logs("17", offset=-4)) == b"two\n"


def test_a_log_that_broke_at_an_unknown_place_is_told(
    client: Client, yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpuyard.sdk.transport.LOG_OFFSET", "Not-Sent")
    yard.add(a_job("17"))
    yard.logs[("17", 0, 1)] = [b"one\n", b"two\n"]
    yard.break_log_after = 1
    with pytest.raises(errors.UnreachableError, match="broke off"):
        list(client.logs("17", offset=-8))


def test_a_stream_of_a_busy_server_is_opened_again(client: Client, yard: Yard) -> None:
    yard.add(a_job("17", state="succeeded"))
    yard.logs[("17", 0, 1)] = [b"one\n"]
    yard.problems += [busy()]
    assert b"".join(client.logs("17")) == b"one\n"


def test_a_stream_that_is_refused_says_why(client: Client) -> None:
    with pytest.raises(errors.NotFoundError, match="there is no job 9"):
        list(client.logs("9"))


# --------------------------------------------------------------------------------------------------------------- async


def test_the_async_client_does_the_same(url: str, yard: Yard) -> None:
    yard.add(a_job("17"))
    yard.logs[("17", 0, 1)] = [b"one\n", b"two\n"]
    yard.break_log_after = 1
    yard.after_log = lambda id: yard.jobs.update({id: a_job(id, state="succeeded")})
    yard.events = [an_event(1), an_event(2), an_event(3)]

    async def work() -> None:
        async with AsyncClient(url, TOKEN, retry=FAST, stream_retry=FAST) as client:
            yard.problems.append(busy())
            assert (await client.submit_job(JobRequest(command="date"))).jobs[0].id == "2"
            assert [job.id async for job in client.jobs()] == ["2", "17"]
            assert b"".join([piece async for piece in client.logs("17", follow=True)]) == b"one\ntwo\n"
            yard.break_events_after = 1
            seen = []
            async for event in client.watch(after=1):
                seen.append(event.revision)
                if len(seen) == 2:
                    break
            assert seen == [2, 3]
            with pytest.raises(errors.NotFoundError):
                await client.get_job("99")

    asyncio.run(work())


def test_the_async_client_tells_that_nobody_answers() -> None:
    async def work() -> None:
        async with AsyncClient("http://127.0.0.1:9", retry=FAST) as client:
            await client.status()

    with pytest.raises(errors.UnreachableError):
        asyncio.run(work())
