"""Commands with a Kubernetes context: what they ask, what they print, and how they end."""

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard.kube import leading
from gpuyard.kube.published import ANNOTATION, published_text
from gpuyard.policies.policy import DEFAULT
from gpuyard.sdk.config import Flags, read_config, resolve, user_config_path
from gpuyard.worlds.kubernetes.settings import Settings
from tests.cli.conftest import run
from tests.on_kube.shelves import (
    PODS,
    QUEUES,
    Shelf,
    a_lease,
    a_node,
    a_pod,
    a_team,
    served,
)

TOLD = {ANNOTATION: published_text(Settings(), DEFAULT)}


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands see neither this machine's clusters nor wait long for a leader."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(leading, "WATCH_MS", 30)
    monkeypatch.setattr(leading, "POLL_S", 0.01)


@pytest.fixture
def shelf() -> Shelf:
    pods = [a_pod("runs", 6, node="node-1"), a_pod("waits", 4), a_pod("huge", 9)]
    return Shelf(*a_team(limit=16), a_node(), a_lease(annotations=TOLD), *pods)


@pytest.fixture
def kubeconfig(shelf: Shelf, tmp_path: Path) -> Iterator[Path]:
    with served(shelf, tmp_path, namespace="default") as path:
        yield path


# ------------------------------------------------------------------------------------------------------------ answers


@pytest.mark.parametrize(
    ("word", "code"), [("runs", 0), ("default/waits", 10), ("default/pod/huge", 11), ("nosuch", 3)]
)
def test_explain_ends_as_with_a_server(kubeconfig: Path, word: str, code: int) -> None:
    assert run("explain", word, "--kubeconfig", kubeconfig).exit_code == code


def test_explain_says_what_the_core_says_and_how_the_pod_is_read(kubeconfig: Path) -> None:
    shown = run("explain", "waits", "--kubeconfig", kubeconfig).stdout
    assert shown.startswith("default/pod/waits (queue team) waits; waiting can help\n")
    for told in ("What stands in its way", "needs 4 GPUs", "WAY OUT", 'queue "team" (label kai.scheduler/queue of the'):
        assert told in shown
    assert "\x1b" not in shown


def test_explain_as_json_has_the_explanation_where_a_servers_answer_has_it(kubeconfig: Path) -> None:
    result = run("explain", "waits", "--kubeconfig", kubeconfig, "-o", "json")
    answer = json.loads(result.stdout)
    assert answer["explanation"]["blockers"][0]["token"] == "NotEnough"
    assert (answer["exit_code"], answer["job"], answer["pod"]) == (10, "default/pod/waits", "default/waits")
    assert answer["holds"] == []


def test_the_namespace_is_the_contexts_the_files_or_the_flags(kubeconfig: Path) -> None:
    result = run("explain", "waits", "--kubeconfig", kubeconfig, "-n", "elsewhere")
    assert result.exit_code == 3
    assert 'no pod or job "waits" in namespace elsewhere' in result.stderr
    assert "elsewhere there is: default/waits" in result.stderr


def test_team_tree_and_ls_show_the_queues(kubeconfig: Path) -> None:
    tree = run("team", "tree", "--kubeconfig", kubeconfig).stdout.splitlines()
    assert tree[0].split()[:4] == ["TEAM", "OWED", "HELD", "BORROWED"]
    assert tree[2].split()[:7] == ["team", "8", "6", "0", "0", "8", "16"]
    assert tree[2].startswith("  team")
    listed = run("team", "ls", "--kubeconfig", kubeconfig, "-o", "csv").stdout.splitlines()
    assert listed[0].endswith("PRIORITY,NAME,NAMESPACES")
    assert [
        queue["name"] for queue in json.loads(run("team", "ls", "--kubeconfig", kubeconfig, "-o", "json").stdout)
    ] == [
        "all",
        "team",
    ]


def test_gpu_ls_is_a_list_or_a_map_of_who_has_what(kubeconfig: Path) -> None:
    rows = [line.split("\t") for line in run("gpu", "ls", "--kubeconfig", kubeconfig).stdout.splitlines()]
    assert rows[1][-1] == "≈default/runs (team)"
    assert rows[7][-1] == ""
    shown = run("gpu", "ls", "--kubeconfig", kubeconfig, "--map")
    assert shown.stdout.splitlines()[1].split()[:4] == ["node-1", "██████··", "2", "2"]
    assert shown.stdout.splitlines()[-1].split() == ["node-1", "default/runs", "team", "0,1,2,3,4,5"]
    assert "gpuyard kube node would tell" in shown.stderr
    assert run("gpu", "ls", "--kubeconfig", kubeconfig, "--node", "node-9").exit_code == 3


def test_node_ls_shows_the_nodes(kubeconfig: Path) -> None:
    heading, row = run("node", "ls", "--kubeconfig", kubeconfig).stdout.splitlines()
    assert heading.split("\t") == ["NODE", "STATE", "GPUS", "FREE", "MODEL", "CPU", "MEMORY", "PODS", "TROUBLE"]
    assert row.split("\t")[:4] == ["node-1", "ready", "8", "2"]


def test_what_if_reads_the_change_files_of_today(kubeconfig: Path, tmp_path: Path) -> None:
    change = tmp_path / "change.yaml"
    change.write_text("nodes: {add: [{name: node-2, gpus: 8}]}\n", encoding="utf-8")
    shown = run("what-if", change, "--kubeconfig", kubeconfig)
    assert shown.exit_code == 0, shown.output
    assert "default/pod/waits  team  starts 1 task on node-2" in shown.stdout
    difference = json.loads(run("what-if", change, "--kubeconfig", kubeconfig, "-o", "json").stdout)
    assert [entry["job"] for entry in difference["started"]] == ["default/pod/waits"]
    change.write_text("queues: {taem: {limit: 1}}\n", encoding="utf-8")
    wrong = run("what-if", change, "--kubeconfig", kubeconfig)
    assert wrong.exit_code == 2
    assert "change.yaml:1:10" in wrong.stderr
    assert 'did you mean "team"' in wrong.stderr


def test_doctor_groups_what_it_finds_and_fails_where_something_does(kubeconfig: Path) -> None:
    result = run("doctor", "--kubeconfig", kubeconfig)
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].startswith("ok    server     http://127.0.0.1")
    at = lines.index("default/pod/huge")
    assert lines[at - 1] == ""
    assert lines[at + 1].startswith("ok    namespace  ")
    found = json.loads(run("doctor", "--kubeconfig", kubeconfig, "--pod", "waits", "-o", "json").stdout)
    assert {finding["subject"] for finding in found} == {"", "default/pod/waits"}
    assert set(found[0]) == {"verdict", "about", "what", "fix", "subject"}


# ------------------------------------------------------------------------------------------------------ what goes wrong


def test_missing_rights_are_named_and_end_with_four(shelf: Shelf, kubeconfig: Path) -> None:
    shelf.denied = (PODS,)
    result = run("team", "tree", "--kubeconfig", kubeconfig)
    assert result.exit_code == 4
    assert result.stderr.startswith("error: you may not list pods\n  an administrator grants it with: kubectl create")


def test_a_cluster_without_queues_is_told_how_to_get_them(shelf: Shelf, kubeconfig: Path) -> None:
    shelf.absent = (QUEUES,)
    result = run("team", "tree", "--kubeconfig", kubeconfig)
    assert (result.exit_code, "gpuyard kube install" in result.stderr) == (1, True)


def test_a_server_that_is_not_there_ends_with_six(shelf: Shelf, tmp_path: Path) -> None:
    with served(shelf, tmp_path) as path:
        pass
    assert run("team", "tree", "--kubeconfig", path).exit_code == 6


def test_flags_that_contradict_each_other_are_wrong_usage(kubeconfig: Path) -> None:
    both = run("explain", "p", "--kubeconfig", kubeconfig, "--url", "http://127.0.0.1:1")
    assert (both.exit_code, "keep one of the two" in both.output) == (2, True)
    for words in (["explain", "1", "-n", "x"], ["doctor", "-n", "x"], ["doctor", "--pod", "p"]):
        result = run(*words, "--url", "http://127.0.0.1:1")
        assert (result.exit_code, "Kubernetes cluster" in result.output) == (2, True)


# ------------------------------------------------------------------------------------------------------------ contexts


def test_a_context_may_be_a_cluster(kubeconfig: Path) -> None:
    made = run("config", "set-context", "prod", "--kubeconfig", kubeconfig, "-n", "default")
    assert made.exit_code == 0, made.output
    used = run("config", "use-context", "prod")
    assert used.stderr == f"context prod (Kubernetes, the current context of {kubeconfig}) is in use\n"
    assert run("explain", "waits").exit_code == 10
    shown = run("config", "view", "--show-origin").stdout
    assert "kubernetes = yes    # context prod" in shown
    assert f"* context prod: Kubernetes, the current context of {kubeconfig}" in shown
    assert run("explain", "runs", "--kube-context", "test").exit_code == 0
    assert run("explain", "runs", "--kube-context", "nosuch").exit_code == 2


def test_what_only_a_server_can_do_is_refused_and_never_sent_elsewhere(tmp_path: Path) -> None:
    """Also where a server runs on this machine: that one was not chosen."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "server.json").write_text('{"url": "http://127.0.0.1:1", "ca": ""}', encoding="utf-8")
    run("config", "set-context", "prod", "--kubernetes")
    run("config", "use-context", "prod")
    result = run("ls")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: this asks a server, and context prod chooses a Kubernetes cluster\n")
    assert "explain, what-if, team ls" in result.stderr
    assert run("ls", "--url", "http://127.0.0.1:2").exit_code == 6


def test_of_a_server_and_a_cluster_the_nearer_holds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run("config", "set-context", "prod", "--kubernetes", "--kube-context", "a", "-n", "team-a")
    run("config", "set-context", "lab", "--url", "https://lab:1")
    assert resolve(Flags(context="prod")).on_kubernetes
    assert not resolve(Flags(context="lab")).on_kubernetes
    assert resolve(Flags(context="lab", kubernetes="yes")).get("url") == ""
    monkeypatch.setenv("GPUYARD_URL", "https://env:1")
    monkeypatch.setenv("GPUYARD_TOKEN", "secret")
    assert resolve(Flags(context="prod")).get("token") == ""
    monkeypatch.setenv("GPUYARD_CONTEXT", "prod")
    assert resolve().get("url") == "https://env:1"


def test_what_a_context_says_of_its_cluster_is_not_taken_for_another_one(tmp_path: Path) -> None:
    run("config", "set-context", "prod", "--kubeconfig", tmp_path / "k", "--kube-context", "a", "-n", "team-a")
    own = resolve(Flags(context="prod", kubernetes="yes"))
    assert (own.get("kube_context"), own.get("namespace")) == ("a", "team-a")
    sibling = resolve(Flags(context="prod", kubernetes="yes", kube_context="b"))
    assert (sibling.get("kubeconfig"), sibling.get("namespace")) == (str(tmp_path / "k"), "")
    other = resolve(Flags(context="prod", kubernetes="yes", kubeconfig="/x"))
    assert (other.get("kubeconfig"), other.get("kube_context"), other.get("namespace")) == ("/x", "", "")


def test_a_context_is_a_server_or_a_cluster_and_can_become_the_other(tmp_path: Path) -> None:
    run("config", "set-context", "lab", "--url", "https://lab:1")
    both = run("config", "set-context", "lab", "--kubernetes")
    assert (both.exit_code, "a server and a Kubernetes cluster at once" in both.stderr) == (2, True)
    assert run("config", "set-context", "lab", "--kubernetes", "--url", "").exit_code == 0
    entry = read_config(user_config_path()).contexts["lab"]
    assert (entry.url, entry.on_kubernetes) == ("", True)
    assert run("config", "set-context", "lab", "--no-kubernetes", "--url", "https://lab:1").exit_code == 0
    assert not read_config(user_config_path()).contexts["lab"].on_kubernetes
    assert stat.S_IMODE(user_config_path().stat().st_mode) == 0o600


# ----------------------------------------------------------------------------------------------------- below `kube`


@pytest.mark.parametrize(
    "words",
    [
        ["explain", "runs"],
        ["team", "tree"],
        ["team", "ls", "-o", "json"],
        ["gpu", "ls"],
        ["doctor", "--pod", "runs", "-o", "json"],
    ],
)
def test_below_kube_the_same_commands_ask_a_cluster(kubeconfig: Path, words: list[str]) -> None:
    below = run("kube", *words, "--kubeconfig", kubeconfig, "--context", "test")
    above = run(*words, "--kubeconfig", kubeconfig, "--kube-context", "test")
    assert (below.exit_code, below.stdout) == (above.exit_code, above.stdout)
    assert below.stdout
