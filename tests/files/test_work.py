"""Jobs to submit: what a file says becomes a job the scheduler can place and a machine can run."""

import re
from collections import Counter
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.errors import InputError
from gpuyard.files.cluster import read_cluster, surroundings
from gpuyard.files.format import NoticeSignal, PriorityWord
from gpuyard.files.jobs import Surroundings
from gpuyard.files.place import Place
from gpuyard.files.tree import parse
from gpuyard.files.work import WorkFile, array_of, read_work, read_work_file
from gpuyard.model.jobs import Request, on_nodes
from gpuyard.model.plan import Bind
from gpuyard.model.work import NOTICE_SIGNALS, PRIORITIES, Array, OnNodeLost
from gpuyard.scheduler.cycle import schedule
from tests.builders import a_cluster

ROOT = Path(__file__).parents[2]
VALID = Path(__file__).parent / "valid"
AROUND = Surroundings(("vision", "speech"), ("vision", "speech"))
BLOCK = re.compile(r"^```yaml\n(.*?)^```", re.DOTALL | re.MULTILINE)


def work(text: str, around: Surroundings = AROUND) -> WorkFile:
    return read_work(Place("job.yaml", parse(text, "job.yaml")), around)


def test_everything_a_file_says_is_read() -> None:
    found = read_work_file(VALID / "work.yaml", surroundings(read_cluster(VALID / "cluster.yaml").snapshot))
    assert (found.name, found.form.queue, found.form.priority, found.held) == ("llm", "vision", 75, True)
    assert found.work.command == ("python", "train.py", "--epochs", "3")
    assert found.work.env == (("DATA", "/data/set"), ("EPOCHS", "3"), ("RATE", "0.30"))
    assert found.work.checkpoint == ("/bin/sh", "-c", "python save.py")
    assert (found.work.grace_ms, found.work.notice_signal, found.work.retries) == (120_000, "USR1", 2)
    assert found.work.on_node_lost is OnNodeLost.WAIT
    assert found.array == Array((1, 3, 5, 7, 9), 2)
    assert (found.after, found.afterok) == (("12",), ("13", "14"))
    assert (len(found.form.tasks), found.form.group.min_tasks) == (2, 1)


def test_a_short_file_is_one_task_with_one_gpu_in_the_only_team_one_has() -> None:
    found = work("command: [/usr/bin/python3, x.py]", replace(AROUND, own=("speech",)))
    assert (found.name, found.form.queue, found.form.id) == ("python3", "speech", "")
    assert [(task.id, task.request) for task in found.form.tasks] == [("0", Request(devices=1))]


def test_who_may_submit_to_several_teams_must_say_which() -> None:
    with pytest.raises(InputError, match="does not say its team"):
        work("command: [x]")


def test_one_text_is_for_the_shell_and_names_the_job() -> None:
    found = work("{team: vision, command: 'python train.py | tee log'}")
    assert found.work.command == ("/bin/sh", "-c", "python train.py | tee log")
    assert found.name == "python"


def test_tasks_are_named_by_their_index_through_all_groups() -> None:
    found = work("{team: vision, command: [x], groups: [{name: a, tasks: 2}, {name: b, gpus: 0}]}")
    assert [(task.id, task.group) for task in found.form.tasks] == [("0", "a"), ("1", "a"), ("2", "b")]


def test_nodes_times_tasks_are_groups_of_as_many_tasks_each_on_a_node() -> None:
    found = work("{team: vision, command: [x], nodes: 2, tasks: 3, gpus: 1}")
    assert found.form.group == on_nodes(2, 3, 2)
    assert [(task.id, task.group[-1]) for task in found.form.tasks] == list(zip("012345", "000111", strict=True))
    assert (found.form.labels, found.form.group.fewest_tasks) == ((), 6)


@pytest.mark.parametrize(("nodes", "tasks", "gang", "least"), [(4, 8, 16, 2), (4, 1, 3, 3), (2, 4, 8, 2)])
def test_a_gang_beside_nodes_counts_tasks_and_comes_in_whole_nodes(
    nodes: int, tasks: int, gang: int, least: int
) -> None:
    found = work(f"{{team: vision, command: [x], nodes: {nodes}, tasks: {tasks}, gang: {gang}}}")
    assert found.form.group == on_nodes(nodes, tasks, least)


def test_one_node_with_one_task_is_a_plain_job() -> None:
    alone = work("{team: vision, command: [x], nodes: 1}").form
    assert alone == work("{team: vision, command: [x]}").form


@pytest.mark.parametrize(("asked", "per_node"), [("nodes: 3", 1), ("nodes: 3, tasks: 2", 2), ("nodes: 1, tasks: 4", 4)])
def test_a_job_lies_on_as_many_nodes_as_it_says(asked: str, per_node: int) -> None:
    form = work(f"{{team: team, command: [x], {asked}, gpus: 1}}", Surroundings(("team",), ("team",))).form
    snapshot = replace(a_cluster().nodes(4, gpus=8).queue("team", quota=8).snapshot(), jobs=(replace(form, id="17"),))
    counts = Counter(action.node for action in schedule(snapshot).actions if isinstance(action, Bind))
    assert counts == dict.fromkeys(sorted(counts), per_node)
    assert len(counts) == len(form.group.children)


@pytest.mark.parametrize(
    ("text", "indices", "at_once"),
    [
        ("0-9%4", tuple(range(10)), 4),
        ("7", (7,), 0),
        ("1,3,5-9:2%2", (1, 3, 5, 7, 9), 2),
        ("5-5", (5,), 0),
        ("3, 1", (1, 3), 0),
        ("0-9999", tuple(range(10_000)), 0),
    ],
)
def test_arrays_are_read_as_slurm_writes_them(text: str, indices: tuple[int, ...], at_once: int) -> None:
    assert array_of(text) == Array(indices, at_once)


def test_the_words_of_the_format_are_those_of_the_model() -> None:
    assert {word.value for word in PriorityWord} == PRIORITIES.keys()
    assert tuple(signal.value for signal in NoticeSignal) == NOTICE_SIGNALS


@pytest.mark.parametrize("field", ["env.A", "labels", "command[1]", "array"])
def test_an_error_names_the_field_for_programs(field: str) -> None:
    texts = {
        "env.A": "{team: vision, command: [x], env: {A: true}}",
        "labels": "{team: vision, command: [x], labels: 3}",
        "command[1]": "{team: vision, command: [x, 3]}",
        "array": "{team: vision, command: [x], array: x}",
    }
    with pytest.raises(InputError) as caught:
        work(texts[field])
    assert caught.value.where is not None
    assert caught.value.where.field == field


def test_a_field_that_is_missing_is_named() -> None:
    with pytest.raises(InputError) as caught:
        work("team: vision")
    assert caught.value.where is not None
    assert caught.value.where.field == "command"


@pytest.mark.parametrize("text", BLOCK.findall((ROOT / "docs" / "job-file.md").read_text(encoding="utf-8")))
def test_every_example_of_the_document_works(text: str) -> None:
    assert work(text, Surroundings(("ads",), ("ads",))).form.tasks
