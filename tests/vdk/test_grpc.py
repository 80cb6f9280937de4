"""The pool over gRPC: the published .proto, sign-in, statuses, TLS."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from google.protobuf.json_format import MessageToDict

from gpuyard.service.problems import KINDS
from gpuyard.vdk.model import (
    Cost,
    DeviceShare,
    JobUniqueIdentifier,
    Place,
    PlanState,
    Quote,
    StepState,
    Verdict,
    WayOut,
)
from gpuyard.vdk.serving import gpu_resource_manager_pb2 as pb
from gpuyard.vdk.serving import messages
from gpuyard.vdk.serving.calls import CALLS
from gpuyard.vdk.serving.objects import quote_object
from gpuyard.vdk.serving.server import CODES, OPERATION_OF, SERVICE
from gpuyard.wire.access import Scope
from gpuyard.wire.operations import OPERATIONS
from tests.service.yard import Yard
from tests.vdk.faces import METHODS, GrpcPool, RefusedError
from tests.yard import running_yard

ROOT = Path(__file__).parents[2]
PROTO = "gpuyard/pool/v1/gpu_resource_manager.proto"


@pytest.fixture(scope="module")
def yard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Yard]:
    with Yard(tmp_path_factory.mktemp("yard")) as running:
        yield running


@pytest.fixture
def pool(yard: Yard) -> Iterator[GrpcPool]:
    client = GrpcPool(yard.manager.stats.pool, yard.tokens["root"])
    yield client
    client.close()


def code_of(pool: GrpcPool, name: str, message: dict[str, object] | bytes) -> tuple[object, str]:
    with pytest.raises(RefusedError) as refused:
        pool.ask(name, message)
    pool.close()
    return refused.value.code, refused.value.reason


# ----------------------------------------------------------------------------------------------------------- the .proto


@pytest.mark.slow
def test_the_messages_are_what_protoc_makes_of_the_published_file(tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is not installed")
    common = str(resources.files("grpc_tools") / "_proto")
    arguments = [f"-I{ROOT / 'proto'}", f"-I{common}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", PROTO]
    assert protoc.main(["protoc", *arguments]) == 0
    kept = ROOT / "src" / "gpuyard" / "vdk" / "serving"
    for suffix in ("py", "pyi"):
        name = f"gpu_resource_manager_pb2.{suffix}"
        made = (tmp_path / "gpuyard" / "pool" / "v1" / name).read_text(encoding="utf-8")
        assert (kept / name).read_text(encoding="utf-8") == made, "make it anew: see docs/pool-api.md"


def test_the_runtime_we_ask_for_is_not_older_than_the_messages() -> None:
    made = re.search(r"Python Version: ([\d.]+)", Path(str(pb.__file__)).read_text(encoding="utf-8"))
    asked = re.search(r'"protobuf>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert made is not None
    assert asked is not None
    assert tuple(map(int, asked[1].split("."))) >= tuple(map(int, made[1].split(".")))


def test_calls_operations_and_file_are_the_same_set() -> None:
    assert set(CALLS) == set(METHODS.keys())
    assert set(CALLS) == set(OPERATION_OF)
    assert set(OPERATION_OF.values()) == {
        operation.name for operation in OPERATIONS if operation.path.startswith("/v1/pool/")
    }
    for name, call in CALLS.items():
        assert call.request.DESCRIPTOR is METHODS[name].input_type


def test_every_state_and_verdict_has_its_word_in_the_file() -> None:
    tables = (
        (messages.STEP_STATES, StepState, pb.StepState),
        (messages.PLAN_STATES, PlanState, pb.PlanState),
        (messages.VERDICTS, Verdict, pb.Verdict),
    )
    for table, ours, theirs in tables:
        assert set(table) == set(ours)
        assert sorted(table.values()) == sorted(theirs.values())[1:]
        for word, number in table.items():
            assert theirs.Name(number).endswith(word.name)


def test_a_quote_says_the_same_over_both_faces() -> None:
    """With every field set, as the planner may fill it."""
    old, other = (JobUniqueIdentifier(job=name, team="greedy") for name in ("old", "other"))
    place = Place("m", (DeviceShare(0, 1000), DeviceShare(1, 500)))
    cost = Cost(deleted=(old,), moved=(other,))
    way = WayOut("once old has ended", ends=(old,), amount_milli=500, budget_milli=2_500, cost=cost)
    quote = Quote(Verdict.RESHUFFLE, "why", place, cost, "now", (way, WayOut("with less")))
    shown = msgspec.to_builtins(quote_object(quote))
    told = MessageToDict(
        messages.quote_message(quote), preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )

    def same(job: dict[str, str]) -> dict[str, str]:
        return {"name": job["job"], "team": job["team"]}

    def same_cost(found: dict[str, Any]) -> dict[str, Any]:
        return {"deleted": tuple(map(same, found["deleted"])), "moved": tuple(map(same, found["moved"]))}

    assert told["verdict"] == "VERDICT_RESHUFFLE"
    assert (shown["why"], shown["when"]) == (told["why"], told["when"]) == ("why", "now")
    assert msgspec.json.decode(msgspec.json.encode(shown["place"])) == told["place"]
    assert shown["cost"] == same_cost(told["cost"])
    (first, second), (ours, theirs) = shown["ways_out"], told["ways_out"]
    assert (first["what"], first["amount"], first["budget"]) == (ours["what"], ours["amount"], ours["budget"])
    assert (first["amount"], first["budget"], second["amount"]) == ("0.5", "2.5", theirs["amount"]) != ("", "", "")
    assert first["ends"] == tuple(map(same, ours["ends"]))
    assert first["cost"] == same_cost(ours["cost"])


def test_every_refusal_has_a_status() -> None:
    refusals = {kind.status for kind in KINDS.values()} - {405, 408, 412, 415, 421}
    assert refusals <= CODES.keys()


# -------------------------------------------------------------------------------------------------------------- access


@pytest.mark.parametrize("name", CALLS)
def test_without_a_valid_token_nothing_is_answered(yard: Yard, name: str) -> None:
    for token in ("", "nonsense", yard.tokens["root"][:-1] + "x"):
        code, reason = code_of(GrpcPool(yard.manager.stats.pool, token), name, {})
        assert (code, reason) == (grpc.StatusCode.UNAUTHENTICATED, "SignInNeeded")


@pytest.mark.parametrize("name", CALLS)
def test_the_table_decides_here_too(yard: Yard, name: str) -> None:
    """Somebody without a role, and a token that is good for something else."""
    for token in (yard.tokens["new"], yard.token("root", Scope.SCRAPE)):
        code, reason = code_of(GrpcPool(yard.manager.stats.pool, token), name, {})
        assert (code, reason) == (grpc.StatusCode.PERMISSION_DENIED, "NotAllowed")


def test_a_member_asks_for_the_own_team_only(yard: Yard, pool: GrpcPool) -> None:
    pool.set_machine("member", 2, "member")
    for team in ("vision", "speech"):
        pool.set_budget(team, "1", "member")
    member = GrpcPool(yard.manager.stats.pool, yard.tokens["max"])
    assert member.provision("vision", "mine", "1", "member")
    with pytest.raises(RefusedError) as refused:
        member.provision("speech", "theirs", "1", "member")
    assert refused.value.reason == "NotAllowed"
    pool.provision("speech", "theirs", "1", "member")
    jobs = member.ask("ListJobs", {})["jobs"]
    assert [job["id"]["team"] for job in jobs if job["device_type"] == "member"] == ["vision"]
    member.close()


# ----------------------------------------------------------------------------------------------------------- malformed


def test_what_is_no_message_is_refused_as_such(pool: GrpcPool) -> None:
    code, reason = code_of(pool, "TryProvisionResources", b"\xff\xff\xff")
    assert (code, reason) == (grpc.StatusCode.INVALID_ARGUMENT, "Malformed")


def test_what_is_missing_from_a_message_is_named(pool: GrpcPool) -> None:
    with pytest.raises(RefusedError) as refused:
        pool.ask("TryProvisionResources", {"job": {"job": "x", "team": "y"}})
    assert refused.value.reason == "BadField"
    with pytest.raises(RefusedError) as refused:
        pool.provision("team", "x", "1", key="k" * 300)
    assert refused.value.reason == "BadField"


def test_an_unknown_call_is_unimplemented(yard: Yard) -> None:
    with grpc.insecure_channel(yard.manager.stats.pool) as channel:
        for path in (f"/{SERVICE}/Nothing", "/other.Service/JobEnded"):
            call: Any = channel.unary_unary(path)
            with pytest.raises(grpc.RpcError) as refused:
                call(b"", timeout=10)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_calls_are_counted_with_the_others(yard: Yard, pool: GrpcPool) -> None:
    pool.ask("ListMachines", {})
    text = yard.ask("root", "GET", "/metrics").text
    assert 'operation="list_pool_machines"' in text


# ------------------------------------------------------------------------------------------------------------ listening


@pytest.mark.slow
def test_an_address_that_others_reach_has_tls_and_a_taken_one_is_told(tmp_path: Path) -> None:
    with running_yard(tmp_path, "--fake-gpus", "0", "--pool-listen", "0.0.0.0:0") as yard:
        token = (yard.home / "admin.token").read_text().strip()
        port = json.loads((yard.home / "server.json").read_bytes())["pool"].rpartition(":")[2]
        authority = (yard.home / "ca" / "ca.pem").read_bytes()
        secure = GrpcPool(f"127.0.0.1:{port}", token, grpc.ssl_channel_credentials(authority))
        assert secure.ask("ListMachines", {})["machines"] == []
        secure.close()
        code, _ = code_of(GrpcPool(f"127.0.0.1:{port}", token), "ListMachines", {})
        assert code is grpc.StatusCode.UNAVAILABLE
        assert f"Pool:       0.0.0.0:{port} (gRPC)" in yard.gpuyard("status").stdout
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = yard.gpuyard("up", "--listen", "127.0.0.1:0", "--pool-listen", address, check=False)
    assert done.returncode == 1
    assert f"the pool cannot be listened for on {address}" in done.stderr
    assert "--pool-listen" in done.stderr
