"""Every malformed request gets a problem with a stable reason, a way out, and where there is one the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.service.yard import Yard

JOBS = "/v1/jobs"
YAML = {"Content-Type": "application/yaml"}
JSON = {"Content-Type": "application/json"}
OK = {"command": ["x"], "team": "vision", "gpus": 0}


def job(**fields: Any) -> dict[str, Any]:
    return {"content": json.dumps({**OK, **fields}), "headers": JSON}


def body(text: str | bytes, **headers: str) -> dict[str, Any]:
    return {"content": text, "headers": {**JSON, **headers}}


# (method, path, options, status, reason, field)
CASES: dict[str, tuple[str, str, dict[str, Any], int, str, str]] = {
    # Paths and methods
    "no such path": ("GET", "/v1/nothing", {}, 404, "NoSuchPath", ""),
    "no such path with a slash": ("GET", "/v1/jobs/", {}, 404, "NoSuchPath", ""),
    "the root": ("GET", "/", {}, 404, "NoSuchPath", ""),
    "dots": ("GET", "/v1/jobs/..%2f..%2fetc", {}, 400, "BadPath", ""),
    "a long path": ("GET", "/v1/jobs/" + "x" * 3000, {}, 413, "TooLarge", ""),
    "wrong method": ("DELETE", JOBS, {}, 405, "WrongMethod", ""),
    "an unheard-of method": ("TRACE", JOBS, {}, 405, "WrongMethod", ""),
    "post to livez": ("POST", "/livez", {}, 405, "WrongMethod", ""),
    "no such job": ("GET", "/v1/jobs/999999", {}, 404, "JobUnknown", ""),
    "a job of no sense": ("GET", "/v1/jobs/%00%ff", {}, 400, "BadPath", ""),
    "no such node": ("GET", "/v1/nodes/zz", {}, 404, "NodeUnknown", ""),
    "no such team": ("GET", "/v1/teams/zz", {}, 404, "TeamUnknown", ""),
    "no such token": ("DELETE", "/v1/tokens/zz", {}, 404, "TokenUnknown", ""),
    "no such user": ("DELETE", "/v1/users/zz", {}, 404, "UserUnknown", ""),
    # Queries
    "unknown parameter": ("GET", JOBS + "?teem=vision", {}, 400, "BadParameter", "teem"),
    "parameter twice": ("GET", JOBS + "?team=a&team=b", {}, 400, "BadParameter", "team"),
    "limit zero": ("GET", JOBS + "?limit=0", {}, 400, "BadParameter", "limit"),
    "limit negative": ("GET", JOBS + "?limit=-1", {}, 400, "BadParameter", "limit"),
    "limit too large": ("GET", JOBS + "?limit=1001", {}, 400, "BadParameter", "limit"),
    "limit in words": ("GET", JOBS + "?limit=ten", {}, 400, "BadParameter", "limit"),
    "limit in parts": ("GET", JOBS + "?limit=1.5", {}, 400, "BadParameter", "limit"),
    "limit absurd": ("GET", JOBS + "?limit=" + "9" * 40, {}, 400, "BadParameter", "limit"),
    "limit in other digits": ("GET", JOBS + "?limit=%D9%A1", {}, 400, "BadParameter", "limit"),
    "flag in words": ("GET", JOBS + "?estimate=maybe", {}, 400, "BadParameter", "estimate"),
    "no such state": ("GET", JOBS + "?state=sleeping", {}, 400, "BadParameter", "state"),
    "label without value": ("GET", JOBS + "?label=x", {}, 400, "BadParameter", "label"),
    "cursor garbage": ("GET", JOBS + "?cursor=%21%21", {}, 400, "BadCursor", "cursor"),
    "query not utf-8": ("GET", JOBS + "?team=%ff", {}, 400, "BadParameter", ""),
    "query too long": ("GET", JOBS + "?team=" + "x" * 9000, {}, 413, "TooLarge", ""),
    "many parameters": ("GET", JOBS + "?" + "a=1&" * 60, {}, 400, "BadParameter", ""),
    "since in words": ("GET", "/v1/events?since=yesterday", {}, 400, "BadParameter", "since"),
    "until absurd": ("GET", "/v1/audit?until=9999-99-99", {}, 400, "BadParameter", "until"),
    "object of no kind": ("GET", "/v1/events?object=17", {}, 400, "BadParameter", "object"),
    "event of no kind": ("GET", "/v1/events?kind=birthday", {}, 400, "BadParameter", "kind"),
    "object with a nul": ("GET", "/v1/events?object=job/%00", {}, 400, "BadParameter", "object"),
    "actor with a nul": ("GET", "/v1/audit?actor=%00", {}, 400, "BadParameter", "actor"),
    "use by colour": ("GET", "/v1/usage?by=colour", {}, 400, "BadParameter", "by"),
    "log limit negative": ("GET", "/v1/jobs/{job}/logs?limit=-5", {}, 400, "BadParameter", "limit"),
    # Headers
    "if-match garbage": ("POST", "/v1/jobs/{job}/cancel", {"headers": {"If-Match": "x"}}, 400, "BadHeader", "If-Match"),
    "if-match too long": (
        "POST",
        "/v1/jobs/{job}/cancel",
        {"headers": {"If-Match": '"' + "9" * 30 + '"'}},
        400,
        "BadHeader",
        "If-Match",
    ),
    "key with blanks": ("POST", JOBS, body("{}", **{"Idempotency-Key": "a b"}), 400, "BadHeader", "Idempotency-Key"),
    "key too long": ("POST", JOBS, body("{}", **{"Idempotency-Key": "k" * 256}), 400, "BadHeader", "Idempotency-Key"),
    "last event garbage": (
        "GET",
        "/v1/events?watch=1",
        {"headers": {"Last-Event-ID": "x"}},
        400,
        "BadHeader",
        "Last-Event-ID",
    ),
    "last event ahead": (
        "GET",
        "/v1/events?watch=1",
        {"headers": {"Last-Event-ID": "999999999"}},
        409,
        "RevisionUnknown",
        "",
    ),
    "headers too large": ("GET", JOBS, {"headers": {f"X-{n}": "y" * 4000 for n in range(9)}}, 413, "TooLarge", ""),
    # Kinds of bodies
    "no content type": ("POST", JOBS, {"content": b"{}"}, 415, "WrongMedia", ""),
    "a form": ("POST", JOBS, {"data": {"command": "x"}}, 415, "WrongMedia", ""),
    "plain text": ("POST", JOBS, {"content": "x", "headers": {"Content-Type": "text/plain"}}, 415, "WrongMedia", ""),
    "yaml where json is read": ("POST", "/v1/tokens", {"content": "name: x", "headers": YAML}, 415, "WrongMedia", ""),
    "another charset": (
        "POST",
        JOBS,
        body("{}", **{"Content-Type": "application/json; charset=utf-16"}),
        415,
        "WrongMedia",
        "",
    ),
    "compressed": ("POST", JOBS, body("{}", **{"Content-Encoding": "gzip"}), 415, "WrongMedia", ""),
    # JSON bodies
    "empty": ("POST", "/v1/tokens", body(""), 400, "Malformed", ""),
    "not json": ("POST", "/v1/tokens", body("{"), 400, "Malformed", ""),
    "json not utf-8": ("POST", "/v1/tokens", body(b'{"name": "\xff"}'), 400, "Malformed", ""),
    "json of another kind": ("POST", "/v1/tokens", body("[]"), 400, "BadField", ""),
    "json too deep": ("POST", "/v1/tokens", body('{"name":' + "[" * 100_000), 400, "BadField", "name"),
    "unknown field": ("POST", "/v1/tokens", body('{"nme": "x"}'), 400, "BadField", ""),
    "wrong type": ("POST", "/v1/tokens", body('{"expires_in_ms": "1d"}'), 400, "BadField", "expires_in_ms"),
    "unknown word": ("POST", "/v1/tokens", body('{"scope": "everything"}'), 400, "BadField", "scope"),
    "number absurd": ("POST", "/v1/tokens", body('{"expires_in_ms": 1e400}'), 400, "BadField", "expires_in_ms"),
    "expiry too short": ("POST", "/v1/tokens", body('{"expires_in_ms": 0}'), 400, "BadValue", "expires_in_ms"),
    "expiry too long": (
        "POST",
        "/v1/tokens",
        body('{"expires_in_ms": 99999999999999}'),
        400,
        "BadValue",
        "expires_in_ms",
    ),
    "token name with a line": ("POST", "/v1/tokens", body('{"name": "a\\nb"}'), 400, "BadValue", "name"),
    "token of nobody": ("POST", "/v1/tokens", body('{"user": "zz"}'), 404, "UserUnknown", ""),
    "scale a job without a range": (
        "POST",
        "/v1/jobs/{job}/scale",
        body('{"tasks": 3}'),
        409,
        "NotElastic",
        "",
    ),
    "scale to nothing": ("POST", "/v1/jobs/{job}/scale", body('{"tasks": 0}'), 400, "BadValue", "tasks"),
    "scale upside down": (
        "POST",
        "/v1/jobs/{job}/scale",
        body('{"tasks": 1, "min_tasks": 2}'),
        400,
        "BadValue",
        "tasks",
    ),
    "scale without tasks": ("POST", "/v1/jobs/{job}/scale", body("{}"), 400, "BadField", ""),
    "labels too long": (
        "PATCH",
        "/v1/nodes/m1",
        body(json.dumps({"labels": {"k": "v" * 300}})),
        400,
        "BadValue",
        "labels",
    ),
    "label of nothing": ("PATCH", "/v1/nodes/m1", body('{"labels": {"": "x"}}'), 400, "BadValue", "labels"),
    "user with a blank": ("PUT", "/v1/users/a%20b", body('{"grants": []}'), 400, "BadValue", "name"),
    "user too long": ("PUT", f"/v1/users/{'u' * 250}", body('{"grants": []}'), 400, "BadValue", "name"),
    "lone surrogate": ("POST", "/v1/tokens", body(r'{"name": "\ud800"}'), 400, "Malformed", ""),
    "grant of no role": (
        "PUT",
        "/v1/users/ann",
        body('{"grants": [{"role": "king"}]}'),
        400,
        "BadField",
        "grants[0].role",
    ),
    "grant in no team": (
        "PUT",
        "/v1/users/ann",
        body('{"grants": [{"role": "lead", "team": "zz"}]}'),
        404,
        "TeamUnknown",
        "grants",
    ),
    "admin of one team": (
        "PUT",
        "/v1/users/ann",
        body('{"grants": [{"role": "admin", "team": "vision"}]}'),
        400,
        "BadValue",
        "",
    ),
    "member of no team": ("PUT", "/v1/teams/zz/members/max", body('{"role": "lead"}'), 404, "TeamUnknown", ""),
    "member who is nobody": ("PUT", "/v1/teams/vision/members/zz", body('{"role": "lead"}'), 404, "UserUnknown", ""),
    "last admin": ("PUT", "/v1/users/root", body('{"grants": []}'), 409, "LastAdmin", ""),
    "body too large": ("POST", "/v1/tokens", body(b'{"name": "' + b"x" * (1 << 20) + b'"}'), 413, "TooLarge", ""),
    # Job files
    "job: empty": ("POST", JOBS, body(""), 400, "BadField", ""),
    "job: not yaml": ("POST", JOBS, {"content": "a: [", "headers": YAML}, 400, "Malformed", ""),
    "job: not json": ("POST", JOBS, body('{"command": ['), 400, "Malformed", ""),
    "job: no command": ("POST", JOBS, body('{"team": "vision"}'), 400, "BadField", "command"),
    "job: unknown field": ("POST", JOBS, job(gpu=1), 400, "BadField", "gpu"),
    "job: gpus in words": ("POST", JOBS, job(gpus="many"), 400, "BadField", "gpus"),
    "job: gpus too fine": ("POST", JOBS, job(gpus=0.0001), 400, "BadField", "gpus"),
    "job: gpus not finite": (
        "POST",
        JOBS,
        body('{"command": ["x"], "team": "vision", "gpus": 1e999}'),
        400,
        "BadField",
        "gpus",
    ),
    "job: no such team": ("POST", JOBS, job(team="zz"), 400, "BadField", "team"),
    "job: a queue with teams": ("POST", JOBS, job(team="research"), 400, "BadField", "team"),
    "job: no team named": ("POST", JOBS, body('{"command": ["x"]}'), 400, "BadField", "team"),
    "job: a field twice": ("POST", JOBS, body('{"command": "x", "command": "y"}'), 400, "BadField", "command"),
    "job: a variable twice": (
        "POST",
        JOBS,
        body('{"command": "x", "env": {"A": 1, "A": 2}}'),
        400,
        "BadField",
        "env.A",
    ),
    "job: a number of 40 digits": (
        *("POST", JOBS, body('{"command": "x", "groups": [{"name": "a", "tasks": ' + "9" * 40 + "}]}")),
        *(400, "BadField", "groups[0].tasks"),
    ),
    "job: variable of gpuyard": ("POST", JOBS, job(env={"GPUYARD_X": "1"}), 400, "BadField", "env.GPUYARD_X"),
    "job: nul in a variable": ("POST", JOBS, job(env={"A": "\0"}), 400, "BadField", "env.A"),
    "job: array of nothing": ("POST", JOBS, job(array="x"), 400, "BadField", "array"),
    "job: array too long": ("POST", JOBS, job(array="0-99999"), 400, "BadField", "array"),
    "job: gang above tasks": ("POST", JOBS, job(tasks=1, gang=2), 400, "BadField", "gang"),
    "job: after nobody": ("POST", JOBS, job(after=["999999"]), 422, "DependencyUnknown", "after"),
    "job: after no success": ("POST", JOBS, job(afterok=["999999"]), 422, "DependencyUnknown", "afterok"),
    "job: half a node": ("POST", JOBS, job(nodes=2, tasks=2, gang=3), 400, "BadField", "gang"),
    "job: more nodes than there are": ("POST", JOBS, job(nodes=2, tasks=2), 422, "Never", ""),
    "job: never": ("POST", JOBS, job(gpus=64), 422, "Never", ""),
    "job: alias bomb": (
        "POST",
        JOBS,
        {
            "content": "a: &a [x,x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(8)),
            "headers": YAML,
        },
        400,
        "BadField",
        "e[0]",
    ),
    "job: too large": ("POST", JOBS, body(b'{"name": "' + b"x" * (16 << 20) + b'"}'), 413, "TooLarge", ""),
    "job: a tag": ("POST", JOBS, {"content": "!!python/object:os.system {}", "headers": YAML}, 400, "BadField", ""),
    # Teams
    "teams: none": ("PUT", "/v1/teams", body('{"queues": {}}'), 400, "BadField", "queues"),
    "teams: quota negative": (
        "PATCH",
        "/v1/teams",
        body('{"queues": {"vision": -1}}'),
        400,
        "BadField",
        "queues.vision",
    ),
    "teams: quota above limit": (
        "PATCH",
        "/v1/teams",
        body('{"queues": {"vision": {"quota": 9}}}'),
        400,
        "BadField",
        "queues.vision.quota",
    ),
    "teams: misspelt": ("PATCH", "/v1/teams", body('{"queues": {"vison": 4}}'), 400, "BadField", "queues.vison"),
    "teams: a parent of itself": (
        "PUT",
        "/v1/teams",
        body('{"queues": {"a": {"parent": "b"}, "b": {"parent": "a"}}}'),
        400,
        "BadField",
        "queues.a.parent",
    ),
    "teams: name too long": (
        "PATCH",
        "/v1/teams",
        body(json.dumps({"queues": {"t" * 250: {"new": True}}})),
        400,
        "BadValue",
        "queues",
    ),
    "teams: still has jobs": ("DELETE", "/v1/teams/vision", {}, 409, "TeamHasJobs", "vision"),
    "teams: has teams": ("DELETE", "/v1/teams/research", {}, 409, "TeamHasTeams", ""),
    "teams: old revision": (
        "PATCH",
        "/v1/teams",
        body('{"queues": {"product": 3}}', **{"If-Match": '"1"'}),
        412,
        "Changed",
        "",
    ),
    "what-if: nothing": ("POST", "/v1/what-if", body("{}"), 400, "BadField", ""),
    "what-if: no such node": (
        "POST",
        "/v1/what-if",
        body('{"nodes": {"drain": ["zz"]}}'),
        400,
        "BadField",
        "nodes.drain[0]",
    ),
    # Machines
    "join with a wrong request": ("POST", "/v1/nodes:join", body('{"node": "a", "csr": "x"}'), 403, "NotAllowed", ""),
    "declare lost who is heard": ("POST", "/v1/nodes/m1/declare-lost", {}, 409, "NodeHeard", ""),
}


@pytest.fixture(scope="module")
def held_job(yard: Yard) -> str:
    return yard.submit("root", team="vision", gpus=0, hold=True)


@pytest.mark.parametrize("name", CASES)
def test_a_malformed_request_is_refused_by_name(yard: Yard, held_job: str, name: str) -> None:
    method, path, options, status, reason, field = CASES[name]
    before = yard.manager.state.next_job, yard.manager.state.teams_revision, dict(yard.manager.state.users)
    response = yard.ask("root", method, path.replace("{job}", held_job), **options)
    assert response.headers["content-type"] == "application/problem+json", response.text
    problem = response.json()
    assert (response.status_code, problem["reason"], problem.get("field", "")) == (status, reason, field), problem
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    assert problem["fix"]
    after = yard.manager.state.next_job, yard.manager.state.teams_revision, dict(yard.manager.state.users)
    assert before == after, "something was half done"


def test_there_are_many_ways_to_be_wrong() -> None:
    assert len(CASES) >= 100


def test_an_error_in_a_file_says_line_and_column(yard: Yard) -> None:
    text = "command: [x]\nteam: vision\ngpus: many\n"
    problem = yard.ask("max", "POST", JOBS, content=text, headers=YAML).json()
    assert problem["detail"].startswith("body.yaml:3:7: ")


def test_characters_beyond_the_first_plane_arrive_however_they_are_written(yard: Yard) -> None:
    for text in (r'"\ud83d\ude00 \\ud83d"', '"😀 \\\\ud83d"'):
        body = f'{{"command": ["echo", {text}], "team": "vision", "gpus": 0, "hold": true}}'
        id = yard.ask("max", "POST", JOBS, content=body.encode(), headers=JSON).json()["jobs"][0]["id"]
        assert yard.ask("max", "GET", f"/v1/jobs/{id}").json()["command"] == ["echo", "😀 \\ud83d"]


def test_a_bug_is_told_without_its_inside(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpuyard.service.handlers import HANDLERS

    async def broken(call: object) -> object:
        raise KeyError("the secret of somebody")

    monkeypatch.setitem(HANDLERS, "status", broken)
    answer = yard.ask("max", "GET", "/v1/status")
    assert (answer.status_code, answer.json()["reason"]) == (500, "Internal")
    assert "secret" not in answer.text


def test_a_refusal_says_its_way_out_once_and_calls_json_json(yard: Yard) -> None:
    wrong = yard.ask("root", "PATCH", "/v1/teams", json={"queues": {"vision": {"quota": 5, "limit": 3}}}).json()
    assert wrong["fix"] not in wrong["detail"]
    cut = yard.ask("root", "POST", JOBS, **body('{"command":')).json()
    assert (cut["reason"], "is not JSON" in cut["detail"]) == ("Malformed", True)
