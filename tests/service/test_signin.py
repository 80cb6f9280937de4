"""Signing in: what a credential must be, what a web page may not do, and that nobody is locked out by others."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.service.limits import MAX_FAILURES
from gpuyard.service.signin import admin_of_home, admin_token_file, digest_of, new_token
from gpuyard.wire.access import Grant, Role, Scope
from gpuyard.worlds.standalone.intents import CreateToken, RevokeToken, SetUser
from gpuyard.worlds.standalone.permits import reaching
from gpuyard.worlds.standalone.records import State, TokenRecord, UserRecord
from tests.service.yard import Yard


def status(yard: Yard, **headers: str) -> int:
    with yard.client(**headers) as client:
        return int(client.get("/v1/status").status_code)


def test_a_valid_token_opens(yard: Yard) -> None:
    assert status(yard, Authorization=f"Bearer {yard.tokens['max']}") == 200
    assert status(yard, Authorization=f"bearer {yard.tokens['max']}") == 200


@pytest.mark.parametrize(
    "credential",
    [
        "",
        "Bearer",
        "Bearer x",
        "Bearer gy_",
        "Bearer gy_0123456789abcdef_" + "0" * 64,
        "Bearer gy_" + "0" * 16 + "_" + "0" * 63,
        "Basic YWRtaW46YWRtaW4=",
        "Token {token}",
        "{token}",
        "Bearer {token}x",
        "Bearer {token} extra",
        "Bearer {id}" + "f" * 64,
        "Bearer " + "A" * 5000,
    ],
)
def test_anything_else_does_not(yard: Yard, credential: str) -> None:
    token = yard.tokens["max"]
    said = credential.format(token=token, id=token[:20])
    assert status(yard, Authorization=said) in (401, 429)


def test_a_token_in_the_query_is_none(yard: Yard) -> None:
    with yard.client() as client:
        for name in ("token", "access_token", "authorization"):
            assert client.get("/v1/status", params={name: yard.tokens["root"]}).status_code == 401


def test_a_token_ends_when_it_is_revoked_when_it_expires_and_with_its_user(yard: Yard) -> None:
    revoked = yard.token("mia")
    yard.do(RevokeToken(list(yard.manager.state.tokens)[-1]))
    expired = yard.token("mia", expires_in_ms=-1)
    yard.ask("root", "PUT", "/v1/users/gone", json={"grants": [{"role": "viewer", "team": "vision"}]})
    orphan = yard.token("gone")
    assert yard.ask("root", "DELETE", "/v1/users/gone").status_code == 204
    for token in (revoked, expired, orphan):
        assert status(yard, Authorization=f"Bearer {token}") in (401, 429)


def test_a_token_follows_the_roles_of_its_owner(yard: Yard) -> None:
    yard.ask("root", "PUT", "/v1/users/op", json={"grants": [{"role": "operator"}]})
    scrape = yard.token("op", Scope.SCRAPE)
    with yard.client(token=scrape) as client:
        assert client.get("/metrics").status_code == 200
        assert client.get("/v1/jobs").status_code == 403
        yard.ask("root", "PUT", "/v1/users/op", json={"grants": []})
        assert client.get("/metrics").status_code == 401


def test_metrics_need_a_token_also_on_loopback(yard: Yard) -> None:
    with yard.client() as client:
        assert client.get("/metrics").status_code == 401


def test_open_paths_say_no_more_than_they_must(yard: Yard) -> None:
    with yard.client() as client:
        assert (client.get("/livez").status_code, client.get("/livez").content) == (200, b"")
        assert (client.get("/readyz").status_code, client.get("/readyz").content) == (200, b"")
        assert client.get("/version").json() == {"version": "1.2.3", "api": "v1"}


def test_who_fails_often_waits_and_nobody_else_does(fresh_yard: Yard) -> None:
    wrong = {"Authorization": "Bearer gy_wrong"}
    with fresh_yard.client(**wrong) as client:
        answers = [client.get("/v1/status") for _ in range(MAX_FAILURES + 3)]
    assert [answer.status_code for answer in answers].count(401) == MAX_FAILURES
    assert (answers[-1].status_code, answers[-1].json()["reason"]) == (429, "TooManyFailures")
    assert answers[-1].headers["retry-after"]
    assert status(fresh_yard, Authorization=f"Bearer {fresh_yard.tokens['max']}") == 200


# ----------------------------------------------------------------------------------------------------------- web pages


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    "header",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://[::1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_pages_of_other_sites_are_refused_on_every_method(yard: Yard, method: str, header: dict[str, str]) -> None:
    for path in ("/v1/jobs/1", "/version"):
        refused = yard.ask("root", method, path, headers=header)
        assert (refused.status_code, refused.json()["reason"]) == (403, "OriginNotAllowed")


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "a b", "localhost:x", "169.254.169.254"])
def test_other_host_names_are_refused_on_every_method(yard: Yard, method: str, host: str) -> None:
    refused = yard.ask("root", method, "/version", headers={"Host": host})
    assert refused.status_code in (400, 421)


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:80", "127.0.0.1:7000", "[::1]:7000"])
def test_our_own_names_are_answered(yard: Yard, host: str) -> None:
    assert yard.ask("root", "GET", "/v1/status", headers={"Host": host}).status_code == 200


def test_no_page_may_read_an_answer(yard: Yard) -> None:
    preflight = {"Origin": yard.url, "Access-Control-Request-Method": "POST"}
    answers = [yard.ask("max", "GET", "/v1/jobs"), yard.ask("max", "OPTIONS", "/v1/jobs", headers=preflight)]
    for answer in answers:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "server" not in answer.headers
    assert answers[1].status_code == 405


# --------------------------------------------------------------------------------------------------------- first start


def test_the_first_start_makes_an_admin_whose_token_only_its_owner_reads(tmp_path: Path) -> None:
    user, token = admin_of_home(State(), tmp_path, 1_000)
    assert user == SetUser("admin", (Grant(Role.ADMIN),))
    assert isinstance(token, CreateToken)
    written = tmp_path / "admin.token"
    assert written.stat().st_mode & 0o777 == 0o600
    _, _, secret = written.read_text(encoding="utf-8").strip().split("_")
    assert digest_of(secret) == token.digest
    assert secret not in repr(token)


def founded(home: Path) -> State:
    """A cluster after its first start."""
    _, token = admin_of_home(State(), home, 1_000)
    assert isinstance(token, CreateToken)
    record = TokenRecord(token.id, token.name, token.user, token.digest, token.scope, 1_000, token.expires_at_ms)
    return State(users={"admin": UserRecord("admin", (Grant(Role.ADMIN),))}, tokens={token.id: record})


def test_later_starts_leave_a_token_that_is_good(tmp_path: Path) -> None:
    state = founded(tmp_path)
    assert admin_of_home(state, tmp_path, 2_000) == ()
    assert admin_token_file(state, tmp_path, 2_000) == tmp_path / "admin.token"


@pytest.mark.parametrize("what", ["gone", "of another database", "over", "revoked", "no token at all"])
def test_whoever_owns_the_home_is_let_in_again(tmp_path: Path, what: str) -> None:
    state, now_ms = founded(tmp_path), 2_000
    (record,) = state.tokens.values()
    match what:
        case "gone":
            (tmp_path / "admin.token").unlink()
        case "of another database":
            founded(tmp_path)
        case "over":
            now_ms = record.expires_at_ms
        case "revoked":
            state.tokens[record.id] = replace(record, revoked=True)
        case _:
            (tmp_path / "admin.token").write_text("\N{SNOWMAN}", encoding="utf-8")
    (token,) = admin_of_home(state, tmp_path, now_ms)
    assert isinstance(token, CreateToken)
    secret = (tmp_path / "admin.token").read_text(encoding="ascii").strip().split("_")[2]
    assert (token.user, token.scope, token.digest) == ("admin", Scope.FULL, digest_of(secret))


def test_who_took_the_role_from_admin_is_not_given_it_again(tmp_path: Path) -> None:
    state = State(users={"ann": UserRecord("ann", (Grant(Role.ADMIN),)), "admin": UserRecord("admin")})
    assert admin_of_home(state, tmp_path, 1_000) == ()
    assert admin_token_file(state, tmp_path, 1_000) is None
    assert not list(tmp_path.iterdir())


def test_no_two_tokens_are_alike() -> None:
    made = [new_token("a", "", Scope.FULL, 1) for _ in range(50)]
    assert len({one.secret for one in made}) == len({one.intent.id for one in made}) == 50


def test_a_role_in_a_queue_reaches_all_below_it(yard: Yard) -> None:
    queues = yard.manager.state.queues
    found = set(reaching((Grant(Role.LEAD, "research"), Grant(Role.VIEWER, "product")), queues))
    assert found == {
        Grant(Role.LEAD, "research"),
        Grant(Role.LEAD, "vision"),
        Grant(Role.LEAD, "speech"),
        Grant(Role.VIEWER, "product"),
    }


# ------------------------------------------------------------------------------------------------------------- joining


def test_a_machine_joins_once_with_its_token(yard: Yard) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    made = yard.ask("olga", "POST", "/v1/tokens", json={"scope": "join"}).json()
    assert made["secret"].endswith(yard.authority.pin)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "m7")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name)
    signed = request.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
    csr = signed.public_bytes(serialization.Encoding.PEM).decode()
    with yard.client(token=made["secret"]) as client:
        wrong = client.post("/v1/nodes:join", json={"node": "m8", "csr": csr})
        assert (wrong.status_code, wrong.json()["field"]) == (400, "csr")
        joined = client.post("/v1/nodes:join", json={"node": "m7", "csr": csr})
        assert joined.status_code == 201
        assert "BEGIN CERTIFICATE" in joined.json()["certificate"]
        assert yard.manager.state.nodes["m7"].fingerprint
        assert client.post("/v1/nodes:join", json={"node": "m7", "csr": csr}).status_code == 401
