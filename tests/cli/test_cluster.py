"""Commands about teams, machines, GPUs, people, use and what happened."""

import csv
import io
import json
from pathlib import Path

import pytest
import yaml

from gpuyard.cli import team, token, user
from gpuyard.model.difference import Difference, Started
from gpuyard.wire import rest
from gpuyard.wire.access import CLUSTER_ROLES, Role, Scope
from gpuyard.wire.operations import OPERATIONS
from tests.cli.conftest import Run
from tests.sdk.yard import Yard, a_job, a_node, a_status, an_event

pytestmark = pytest.mark.slow


def test_the_words_of_roles_and_scopes_are_those_of_the_table() -> None:
    assert tuple(Role) == user.ROLES
    assert set(user.CLUSTER_ROLES) == CLUSTER_ROLES
    assert set(team.ROLES) == set(Role) - CLUSTER_ROLES
    assert set(token.SCOPES) == set(Scope) - {Scope.JOIN}
    assert {"usage", "what_if"} < {operation.name for operation in OPERATIONS}


# --------------------------------------------------------------------------------------------------------------- teams


def test_the_tree_of_teams(gpuyard: Run) -> None:
    lines = gpuyard("team", "tree").stdout.splitlines()
    assert [line.split("  ")[0] or line.strip().split()[0] for line in lines] == [
        "TEAM",
        "research",
        "vision",
        "speech",
    ]
    assert lines[2].startswith("  vision")
    assert "1 run, 1 wait" in lines[2]


def test_the_list_of_teams(gpuyard: Run) -> None:
    assert gpuyard("team", "ls", "-o", "name").stdout == "research\nvision\nspeech\n"
    assert gpuyard("team", "ls", "-o", "csv").stdout.startswith("TEAM,PARENT,OWED")


def test_a_team_is_set_after_saying_what_that_does(gpuyard: Run, yard: Yard) -> None:
    yard.difference = Difference(started=(Started("18", "speech", 1, ("node-1",)),))
    result = gpuyard("team", "set", "vision", "--quota", "16", "--limit", "unlimited", "--idle-limit", "30m")
    assert result.exit_code == 0
    assert "1 job starts" in result.stdout
    assert [asked.query for asked in yard.asked] == [{"dry_run": "true"}, {}]
    assert yard.asked[1].json == {"queues": {"vision": {"quota": "16", "limit": "unlimited", "idle_limit": "30m"}}}


@pytest.mark.parametrize("flag", ["--dry-run", "--yes"])
def test_what_is_seldom_meant_is_said_once(gpuyard: Run, yard: Yard, flag: str) -> None:
    yard.notes = ("teams are owed 20 GPUs in all, and the cluster has 16",)
    told = gpuyard("team", "set", "vision", "--quota", "20", flag).stderr
    assert told.count("note: teams are owed 20 GPUs in all, and the cluster has 16\n") == 1


def test_a_dry_run_of_a_team_changes_nothing(gpuyard: Run, yard: Yard) -> None:
    gpuyard("team", "set", "vision", "--quota", "16", "--dry-run")
    assert [asked.query for asked in yard.asked] == [{"dry_run": "true"}]
    gpuyard("team", "set", "audio", "--new", "--yes", "--if-revision", "4")
    assert (yard.asked[1].query, yard.asked[1].headers["if-match"]) == ({}, '"4"')


def test_teams_come_from_a_file(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "teams.yaml"
    path.write_text("queues: {vision: 8}\n", encoding="utf-8")
    gpuyard("team", "set", path, "--yes")
    gpuyard("team", "set", path, "--yes", "--replace")
    gpuyard("team", "validate", path)
    gpuyard("team", "validate", path, "--changes")
    names = [(asked.name, asked.query.get("dry_run")) for asked in yard.asked]
    assert names == [("change_teams", None), ("set_teams", None), ("set_teams", "true"), ("change_teams", "true")]


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "vision"],
        ["set", "vision", "--quota", "lots"],
        ["set", "vision", "--replace", "--quota", "4"],
        ["set", "t.yaml", "--quota", "4"],
        ["set", "no-such.yaml"],
        ["members", "vision", "--set", "ann=king"],
        ["members", "vision", "--set", "ann"],
    ],
    ids=" ".join,
)
def test_wrong_changes_of_teams_are_told(gpuyard: Run, yard: Yard, arguments: list[str]) -> None:
    assert gpuyard("team", *arguments).exit_code == 2
    assert yard.asked == []


def test_a_team_is_removed_and_its_members_are_set(gpuyard: Run, yard: Yard) -> None:
    assert gpuyard("team", "remove", "audio", "--yes").exit_code == 0
    assert gpuyard("team", "remove", "audio", "--dry-run").exit_code == 0
    assert gpuyard("team", "members", "vision", "--set", "bob=member", "--remove", "eve").stdout == "ann\tlead\n"
    assert "would make bob member" in gpuyard("team", "members", "vision", "--set", "bob=member", "--dry-run").stdout
    names = [asked.name for asked in yard.asked]
    assert names == ["remove_team", "remove_team", "set_member", "remove_member", "get_team", "get_team"]


# ------------------------------------------------------------------------------------------------------------ machines


def test_machines_are_listed_and_described(gpuyard: Run) -> None:
    assert gpuyard("node", "ls", "-o", "name").stdout == "node-1\nnode-2\n"
    output = gpuyard("node", "describe", "node-1").stdout
    assert "8 (A100), 5.5 free, fake" in output
    assert "job 17 (vision) 0.5" in output
    assert json.loads(gpuyard("node", "describe", "node-1", "-o", "json").stdout)["name"] == "node-1"
    assert gpuyard("node", "describe", "nowhere").exit_code == 3


def test_a_machine_says_how_it_keeps_bounds(gpuyard: Run, yard: Yard) -> None:
    assert (
        "cores are booked, not enforced; memory is looked at every second"
        in gpuyard("node", "describe", "node-1").stdout
    )
    yard.nodes = [a_node("node-1", cores_kept="enforced", limits_note="memory: the cgroup is another program's")]
    told = gpuyard("node", "describe", "node-1").stdout
    assert "cores are enforced; memory is looked at every second (memory: the cgroup is another program's)" in told


def test_a_machine_says_which_processes_its_tasks_see(gpuyard: Run, yard: Yard) -> None:
    assert "Processes" not in gpuyard("node", "describe", "node-1").stdout
    yard.nodes = [
        a_node("node-1", process_view="shared", process_note="the agent does not run as root; run it as root")
    ]
    told = gpuyard("node", "describe", "node-1").stdout
    assert "tasks see the command lines of all processes of the node (the agent does not run as root; run it" in told
    yard.nodes = [a_node("node-1", process_view="isolated")]
    assert "a task sees its own processes only" in gpuyard("node", "describe", "node-1").stdout


@pytest.mark.parametrize(
    ("verb", "operation"),
    [
        ("drain", "drain_node"),
        ("resume", "resume_node"),
        ("declare-lost", "declare_lost_node"),
        ("remove", "remove_node"),
    ],
)
def test_machines_are_taken_in_and_out(gpuyard: Run, yard: Yard, verb: str, operation: str) -> None:
    assert gpuyard("node", verb, "node-1", "--dry-run").stdout.startswith(f"would {verb.replace('-', ' ')} node-1")
    assert gpuyard("node", verb, "node-9", "--dry-run").exit_code == 3
    assert operation not in [asked.name for asked in yard.asked]
    assert gpuyard("node", verb, "node-1", "--yes", "--if-revision", "3").exit_code == 0
    assert [asked.name for asked in yard.asked].count(operation) == 1
    assert gpuyard("node", verb, "a", "b", "--if-revision", "3").exit_code == 2


def test_draining_is_tried_by_what_if(gpuyard: Run, yard: Yard) -> None:
    yard.difference = Difference(started=(Started("18", "speech", 1, ("node-2",)),))
    result = gpuyard("node", "drain", "node-1", "node-2", "--dry-run")
    assert result.stdout.startswith("would drain node-1, node-2\n")
    assert "1 job starts" in result.stdout
    assert yard.asked[-1].json == {"nodes": {"drain": ["node-1", "node-2"]}}
    told = json.loads(gpuyard("node", "drain", "node-1", "--dry-run", "-o", "json").stdout)
    assert told["difference"]["started"][0]["job"] == "18"


@pytest.mark.parametrize("output", ["json", "yaml"])
@pytest.mark.parametrize(
    ("arguments", "field", "value"),
    [
        (("team", "set", "vision", "--quota", "8", "--yes"), "revision", 9),
        (("team", "set", "vision", "--quota", "8"), "dry_run", False),
        (("team", "set", "vision", "--quota", "8", "--dry-run"), "dry_run", True),
        (("team", "remove", "vision", "--yes"), "dry_run", False),
        (("node", "drain", "node-1", "--yes"), "name", "node-1"),
        (("node", "label", "node-1", "rack=r1"), "labels", {"rack": "r1"}),
        (("user", "set", "ann", "--grant", "lead@vision"), "name", "ann"),
        (("token", "create"), "secret", "gy_t0_secret"),
        (("node", "token"), "secret", "gyj_secret.cafe"),
        (("config", "view"), "contexts", {}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_programs_get_what_was_done_as_data(
    gpuyard: Run, output: str, arguments: tuple[str, ...], field: str, value: object
) -> None:
    result = gpuyard(*arguments, "-o", output)
    assert yaml.safe_load(result.stdout)[field] == value


def test_programs_get_lists_as_data(gpuyard: Run, tmp_path: Path) -> None:
    assert [one["name"] for one in json.loads(gpuyard("team", "tree", "-o", "json").stdout)][1] == "vision"
    assert json.loads(gpuyard("team", "members", "vision", "-o", "json").stdout) == [{"user": "ann", "role": "lead"}]
    assert yaml.safe_load(gpuyard("doctor", "-o", "yaml").stdout)[0]["about"] == "settings"
    both = json.loads(gpuyard("node", "resume", "node-1", "node-2", "-o", "json").stdout)
    assert [one["name"] for one in both] == ["node-1", "node-2"]


def test_the_form_that_is_wished_holds_everywhere(
    gpuyard: Run, yard: Yard, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    yard.add(a_job("17"))
    monkeypatch.setenv("GPUYARD_OUTPUT", "json")
    path = tmp_path / "change.yaml"
    path.write_text("queues: {vision: 8}\n", encoding="utf-8")
    commands = (
        ("explain", "17"),
        ("plan", "--gpus", "1", "--", "date"),
        ("what-if", str(path)),
        ("describe", "17"),
        ("doctor",),
        ("config", "view"),
        ("team", "tree"),
        ("token", "create"),
    )
    for words in commands:
        json.loads(gpuyard(*words).stdout)
    assert gpuyard("explain", "17", "-o", "text").stdout.startswith("17 (team vision)")


def test_machines_are_labelled(gpuyard: Run, yard: Yard) -> None:
    assert gpuyard("node", "label", "node-1", "rack=r7", "zone-").exit_code == 0
    assert yard.asked[0].json == {"labels": {"rack": "r7", "zone": None}}
    assert gpuyard("node", "label", "node-1", "rack").exit_code == 2


def test_a_token_to_join_comes_with_its_command(gpuyard: Run, yard: Yard, url: str) -> None:
    result = gpuyard("node", "token", "--expires", "10m")
    assert result.stdout == f"gpuyard agent --join gyj_secret.cafe@{url}\n"
    assert gpuyard("node", "token", "-o", "name").stdout == "gyj_secret.cafe\n"
    assert yard.asked[0].json["scope"] == "join"
    assert yard.asked[0].json["expires_in_ms"] == 600_000


def test_gpus_are_a_map_of_fragments(gpuyard: Run) -> None:
    lines = gpuyard("gpu", "ls", "--map").stdout.splitlines()
    assert lines[1].split() == ["node-1", "·█▅✗", "1.5", "1", "A100", "(fake)"]
    listed = gpuyard("gpu", "ls", "--columns", "gpu,free,health", "--no-headers").stdout
    assert listed == "0\t1\tok\n1\t0\tok\n2\t0.5\tok\n3\t1\tbroken\n"
    assert len(json.loads(gpuyard("gpu", "ls", "--node", "node-1", "-o", "json").stdout)) == 4


def test_the_status_of_the_cluster(gpuyard: Run, yard: Yard) -> None:
    yard.status = a_status(warnings=("the disk is full",))
    result = gpuyard("status")
    assert "11 of 16 free (fake GPUs)" in result.stdout
    assert result.stderr == "warning: the disk is full\n"
    assert json.loads(gpuyard("status", "-o", "json").stdout)["gpus"] == 16


def test_one_look_at_the_cluster(gpuyard: Run) -> None:
    output = gpuyard("top").stdout
    assert "11 of 16 GPUs free (FAKE)" in output
    assert "·█▅✗" in output


def test_where_the_line_ends_only_the_reason_is_cut(gpuyard: Run, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuyard.cli.terminal.width", lambda: 90)
    why = (rest.Why("NotEnough", "needs 2 GPUs, none is free: " + "wait for them, or ask for fewer; " * 5),)
    yard.add(a_job("1777", "a-rather-long-name", "waiting", why=why))
    (line,) = [line for line in gpuyard("top").stdout.splitlines() if "a-rather-long-name" in line]
    assert line.startswith("1777  a-rather-long-name  vision  ann   waiting  2     0/1 ")
    assert line.endswith("…")


# -------------------------------------------------------------------------------------------------------------- doctor


def test_a_sound_cluster_has_no_failure(gpuyard: Run) -> None:
    result = gpuyard("doctor")
    assert result.exit_code == 0
    assert "FAKE GPUs" in result.stdout
    assert "ok    token" in result.stdout


def test_bounds_that_are_not_enforced_are_told(gpuyard: Run, yard: Yard) -> None:
    yard.nodes = [a_node("node-1"), a_node("node-2", cores_kept="enforced")]
    told = gpuyard("doctor").stdout
    assert "warn  limits     cores are booked, not enforced on 1 of 2: node-1" in told
    assert "memory is only looked at every second on 2 of 2: node-1, node-2" in told
    yard.nodes = [a_node("node-1", cores_kept="enforced", memory_kept="enforced")]
    assert "ok    limits     cores and memory of tasks are enforced everywhere" in gpuyard("doctor").stdout


def test_command_lines_that_others_see_are_told(gpuyard: Run, yard: Yard) -> None:
    yard.nodes = [a_node("node-1", process_view="isolated"), a_node("node-2", process_note="it is no root")]
    told = gpuyard("doctor").stdout
    assert "warn  processes  tasks see the command lines of other users' jobs on 1 of 2: node-2" in told
    assert "node-2: it is no root" in told
    yard.nodes = [a_node("node-1", process_view="isolated")]
    assert "ok    processes  a task sees its own processes only, everywhere" in gpuyard("doctor").stdout


def test_what_is_wrong_is_told_with_what_to_do(gpuyard: Run, yard: Yard) -> None:
    yard.nodes = [a_node("node-1", state="silent", trouble=("GPU 3 is off the bus",))]
    yard.version = "9.9.9"
    yard.status = a_status(gpus=0)
    result = gpuyard("doctor", "-o", "json")
    assert result.exit_code == 1
    told = {(finding["verdict"], finding["about"]) for finding in json.loads(result.stdout)}
    assert {("warn", "server"), ("fail", "gpus"), ("fail", "nodes"), ("warn", "nodes")} <= told
    assert all(finding["fix"] for finding in json.loads(result.stdout) if finding["verdict"] == "fail")


def test_without_a_server_the_doctor_says_so() -> None:
    from tests.cli.conftest import run

    result = run("doctor")
    assert result.exit_code == 1
    assert "gpuyard up" in result.stdout


def test_a_wrong_token_is_found(gpuyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TOKEN", "gy_wrong_token")
    result = gpuyard("doctor")
    assert (result.exit_code, "fail  token" in result.stdout) == (1, True)


# ------------------------------------------------------------------------------------------------- people, use, history


def test_users_and_their_roles(gpuyard: Run, yard: Yard) -> None:
    assert gpuyard("user", "ls", "--no-headers").stdout == "ann\tlead@vision\t\n"
    assert gpuyard("user", "set", "bob", "--grant", "member@vision", "--grant", "operator").stdout == (
        "bob: member@vision, operator\n"
    )
    assert yard.asked[1].json["grants"] == [{"role": "member", "team": "vision"}, {"role": "operator", "team": "*"}]
    assert gpuyard("user", "set", "bob", "--dry-run").stdout == "would give bob the roles: no role\n"
    assert gpuyard("user", "remove", "bob", "--yes").stdout == "bob removed\n"
    assert gpuyard("user", "remove", "bob", "--dry-run").exit_code == 0


@pytest.mark.parametrize("grant", ["king", "lead", "admin@vision"])
def test_roles_that_make_no_sense_are_told(gpuyard: Run, grant: str) -> None:
    assert gpuyard("user", "set", "bob", "--grant", grant).exit_code == 2


def test_tokens_are_made_shown_once_and_revoked(gpuyard: Run, yard: Yard) -> None:
    result = gpuyard("token", "create", "--name", "ci", "--scope", "read", "--expires", "7d")
    assert result.stdout == "gy_t0_secret\n"
    assert yard.asked[0].json == {"name": "ci", "user": "", "scope": "read", "expires_in_ms": 7 * 86_400_000}
    assert gpuyard("token", "ls", "-o", "name").stdout == "t0\n"
    assert "secret" not in gpuyard("token", "ls", "-o", "wide").stdout
    assert gpuyard("token", "revoke", "t0", "--dry-run").stdout == "would revoke t0\n"
    assert gpuyard("token", "revoke", "t0").stdout == "t0 revoked\n"
    assert gpuyard("token", "revoke", "t9").exit_code == 3


def test_a_token_is_meant_by_how_its_id_begins(gpuyard: Run, yard: Yard) -> None:
    for _ in range(2):
        gpuyard("token", "create")
    assert [token.id for token in yard.tokens] == ["t0", "t1"]
    several = gpuyard("token", "revoke", "t")
    assert (several.exit_code, "2 tokens begin with t: t0, t1" in several.stderr) == (2, True)
    yard.tokens.pop()
    assert gpuyard("token", "revoke", "t").stdout == "t0 revoked\n"


def test_use_as_csv(gpuyard: Run, yard: Yard) -> None:
    read = list(csv.DictReader(io.StringIO(gpuyard("usage", "--by", "team,user", "--since", "7d", "-o", "csv").stdout)))
    assert (read[0]["TEAM"], read[0]["BORROWED"], read[0]["WASTED-BY"]) == (
        "vision",
        "4",
        "1.5 by 7 (Reclaimed: gave way to job 18)",
    )
    assert yard.asked[0].query == {"by": "team,user", "since": "7d"}
    assert gpuyard("usage", "--sort", "-held", "--columns", "team", "--no-headers").stdout == "vision\nspeech\n"
    assert "there are: team, user, job, day" in gpuyard("usage", "--by", "colour").stderr


def test_what_happened(gpuyard: Run, yard: Yard) -> None:
    yard.events = [an_event(1), an_event(2, "18")]
    assert gpuyard("events", "--columns", "revision", "--no-headers").stdout == "2\n1\n"
    assert gpuyard("audit", "--object", "job/17", "--since", "1d", "--actor", "ann", "-o", "name").stdout == "1\n"
    assert gpuyard("events", "-w", "--since", "1d").exit_code == 2


def test_who_am_i(gpuyard: Run) -> None:
    assert "lead of vision" in gpuyard("whoami").stdout
    assert json.loads(gpuyard("whoami", "-o", "json").stdout)["user"] == "ann"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_get_their_completion(gpuyard: Run, shell: str) -> None:
    assert "_GPUYARD_COMPLETE" in gpuyard("completion", shell).stdout
