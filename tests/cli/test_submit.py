"""`gpuyard submit` and `run`: what is sent, what is printed, how flags are refused."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.cli.flags import PRIORITIES
from gpuyard.cli.job_flags import ON_NODE_LOST
from gpuyard.model import work
from tests.cli.conftest import Run
from tests.sdk.yard import NOW, ProblemError, Yard, a_job

pytestmark = pytest.mark.slow


def sent(yard: Yard) -> object:
    return next(asked for asked in yard.asked if asked.name in ("submit_job", "plan_job")).json


def test_the_words_of_flags_are_those_of_the_model() -> None:
    assert tuple(work.PRIORITIES) == PRIORITIES
    assert tuple(work.OnNodeLost) == ON_NODE_LOST


def test_a_command_with_flags_becomes_a_job(gpuyard: Run, yard: Yard) -> None:
    flags = "--name t --team vision --gpus 0.5 --cpu 4 --memory 64Gi --elastic 2-8 --priority high --no-preemptible"
    more = "--time 2h --estimate 1h30m --array 0-9%4 --after 3 --afterok 4 --afterok 5 --retries 2 --env A=1 -e B=x=y"
    last = "--workdir /data --label a=1 --model H100 --checkpoint save --grace 1m --on-node-lost wait --hold"
    result = gpuyard("submit", *flags.split(), *more.split(), *last.split(), "--", "python", "train.py", "--lr", "1")
    assert (result.exit_code, result.stdout) == (0, "1_0\n1_1\n1_2\n")
    assert sent(yard) == {
        "name": "t",
        "team": "vision",
        "command": ["python", "train.py", "--lr", "1"],
        "gpus": "0.5",
        "cpu": "4",
        "ram": "64Gi",
        "gang": 2,
        "tasks": 8,
        "priority": "high",
        "preemptible": False,
        "run_limit": "2h",
        "estimate": "1h30m",
        "array": "0-9%4",
        "after": ["3"],
        "afterok": ["4", "5"],
        "retries": 2,
        "env": {"A": "1", "B": "x=y"},
        "workdir": "/data",
        "labels": {"a": "1"},
        "model": ["H100"],
        "checkpoint": "save",
        "grace": "1m",
        "on_node_lost": "wait",
        "hold": True,
    }


def test_gpu_memory_and_nodes(gpuyard: Run, yard: Yard) -> None:
    assert gpuyard("submit", "--gpus", "6GiB", "--nodes", "4", "-p", "70", "--", "date").exit_code == 0
    assert sent(yard) == {"command": ["date"], "gpu_memory": "6GiB", "nodes": 4, "priority": 70}


def test_tasks_on_each_of_several_nodes(gpuyard: Run, yard: Yard) -> None:
    assert gpuyard("submit", "--nodes", "2", "--tasks", "4", "--", "date").exit_code == 0
    assert sent(yard) == {"command": ["date"], "nodes": 2, "tasks": 4}


def test_the_team_of_the_environment_is_used(gpuyard: Run, yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUYARD_TEAM", "speech")
    gpuyard("submit", "--", "date")
    assert sent(yard) == {"command": ["date"], "team": "speech"}


def test_variables_come_from_files_and_flags_win(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("# mine\nexport A=1\nB='two words'\n\n", encoding="utf-8")
    gpuyard("submit", "--env-file", path, "--env", "A=9", "--", "date")
    assert sent(yard) == {"command": ["date"], "env": {"A": "9", "B": "two words"}}


def test_a_broken_file_of_variables_is_told_with_its_line(gpuyard: Run, tmp_path: Path) -> None:
    path = tmp_path / "env"
    path.write_text("A=1\nnonsense\n", encoding="utf-8")
    result = gpuyard("submit", "--env-file", path, "--", "date")
    assert result.exit_code == 2
    assert f"{path}:2:1: no name and value" in result.stderr


# --------------------------------------------------------------------------------------------------------------- files


def job_file(folder: Path, text: str = "command: date\ngpus: 1\n") -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_is_sent_as_it_is(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    assert gpuyard("submit", job_file(tmp_path)).stdout == "1\n"
    assert yard.asked[0].body == b"command: date\ngpus: 1\n"
    assert yard.asked[0].headers["content-type"] == "application/yaml"


def test_flags_win_over_a_file(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = job_file(tmp_path, "command: date\ngpus: 0.10\nqueue: a\nenv: {A: 1, B: 2}\n")
    gpuyard("submit", path, "--team", "vision", "--gpus", "6GiB", "--env", "B=3")
    assert sent(yard) == {"command": "date", "team": "vision", "gpu_memory": "6GiB", "env": {"A": 1, "B": "3"}}


def test_the_team_of_a_file_wins_over_the_environment(
    gpuyard: Run, yard: Yard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GPUYARD_TEAM", "speech")
    gpuyard("submit", job_file(tmp_path, "command: date\nteam: vision\n"))
    assert yard.asked[0].body == b"command: date\nteam: vision\n"
    gpuyard("submit", job_file(tmp_path, "command: date\n"))
    assert yard.asked[1].json == {"command": "date", "team": "speech"}


def test_errors_of_the_server_name_the_file(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = job_file(tmp_path)
    yard.problems.append(ProblemError(422, "BadField", 'body:2:1: there is no field "gpu"', "write gpus", "gpu"))
    result = gpuyard("submit", path)
    assert result.exit_code == 2
    assert result.stderr == f'error: {path}:2:1: there is no field "gpu"\n  write gpus\n'


def test_a_file_that_is_not_there_is_told(gpuyard: Run) -> None:
    result = gpuyard("submit", "nowhere.yaml")
    assert (result.exit_code, "nowhere.yaml: no such file" in result.stderr) == (2, True)


def test_a_script_brings_its_flags_along(gpuyard: Run, yard: Yard, tmp_path: Path) -> None:
    path = tmp_path / "sweep.sh"
    text = "#!/bin/bash\n#GPUYARD --gpus 2 --time 1h  # two will do\n#GPUYARD --label a='b c'\npython sweep.py\n"
    path.write_text(text, encoding="utf-8")
    gpuyard("submit", path, "--gpus", "4")
    assert sent(yard) == {
        "name": "sweep",
        "command": ["/bin/bash", "-c", text],
        "gpus": "4",
        "run_limit": "1h",
        "labels": {"a": "b c"},
    }


def test_a_script_with_a_wrong_flag_or_interpreter_is_refused(gpuyard: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text("#!/bin/sh\n#GPUYARD --gpus many\n", encoding="utf-8")
    assert '"many" is not a number' in gpuyard("submit", path).stderr
    path.write_text("#!/usr/bin/awk -f\n", encoding="utf-8")
    result = gpuyard("submit", path)
    assert (result.exit_code, "takes no script as text" in result.stderr) == (2, True)


# ---------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--gpus", "many"], '"many" is not a number; write digits such as 2 or 0.5'),
        (["--gpus", "-1"], "must not be negative"),
        (["--gpus", "0.1234"], "more than three decimals"),
        (["--gpus", "6XiB"], "is not a number; write it as 64Gi"),
        (["--cpu", "x"], "is not a number"),
        (["--memory", "lots"], "write it as 64Gi"),
        (["--nodes", "0"], "x>=1"),
        (["--elastic", "8"], "write it as 2-8"),
        (["--elastic", "8-2"], "the smaller number first"),
        (["--elastic", "2-8", "--tasks", "3"], "leave out --tasks"),
        (["--elastic", "2-8", "--nodes", "3"], "by nodes and gang in a job file"),
        (["--priority", "huge"], "low, normal, high, urgent or a whole number"),
        (["--time", "soon"], "write it as 90s, 10m, 2h"),
        (["--array", "a-b"], "write it as 0-9"),
        (["--env", "A"], "write NAME=VALUE"),
        (["--label", "=1"], "write NAME=VALUE"),
        (["--retries", "-1"], "0<=x<=1000"),
        (["--on-node-lost", "panic"], "restart-after-lease"),
        (["--timeout", "5s"], "use --time"),
        (["--no-such-flag"], "No such option"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_wrong_flag_is_told_with_the_way_out(gpuyard: Run, yard: Yard, flags: list[str], told: str) -> None:
    result = gpuyard("submit", *flags, "--", "date")
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.split())
    assert yard.asked == []


def test_nothing_to_submit_is_told(gpuyard: Run) -> None:
    assert "Name a job file, or a command after two dashes" in gpuyard("submit").stderr
    assert "A command stands after two dashes" in gpuyard("submit", __file__, "x").stderr
    assert 'There is no file "nvidia-smi"; a command stands after two dashes' in gpuyard("run", "nvidia-smi").stderr


def test_a_job_that_can_never_run_is_refused_with_seven(gpuyard: Run, yard: Yard) -> None:
    result = gpuyard("submit", "--gpus", "99", "--", "date")
    assert result.exit_code == 7
    assert result.stderr == "error: --gpus: it asks for 99 GPUs, the largest node has 8\n  try --gpus 8\n"
    assert gpuyard("submit", "--gpus", "99", "--allow-never", "--", "date").exit_code == 0


def test_a_dry_run_submits_nothing(gpuyard: Run, yard: Yard) -> None:
    result = gpuyard("submit", "--dry-run", "--name", "t", "--", "date")
    assert result.stdout == (
        "would submit a job (t) for team vision: 2 GPUs, priority 50\njob 1 of vision starts on node-1\n"
    )
    assert yard.jobs == {}


@pytest.mark.parametrize("command", ["run", "submit --follow"])
@pytest.mark.parametrize("flags", ["--array 0-2 -- date", "FILE"])
def test_an_array_is_not_followed_and_nothing_is_submitted(
    gpuyard: Run, yard: Yard, tmp_path: Path, command: str, flags: str
) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("command: date\narray: 0-2\n", encoding="utf-8")
    result = gpuyard(*command.split(), *flags.replace("FILE", str(path)).split())
    assert (result.exit_code, "An array cannot be followed as a whole" in result.stderr) == (2, True)
    assert yard.jobs == {}


def test_an_array_is_waited_for_as_a_whole(gpuyard: Run, yard: Yard) -> None:
    yard.submitted_state = "succeeded"
    result = gpuyard("submit", "--wait", "--array", "0-2", "--", "date")
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if "succeeded" in line] == [
        f"job 1_{index} succeeded after 0s" for index in range(3)
    ]
    yard.add(a_job("1_1", state="failed", exit_code=124, array="1"))
    waited = gpuyard("wait", "1")
    # The code of a job that is 124 by itself is not taken for the end of our patience.
    assert (waited.exit_code, "job 1_2 succeeded" in waited.stderr) == (124, True)


def test_a_job_that_is_over_is_waited_for_by_its_name(gpuyard: Run, yard: Yard) -> None:
    yard.add(a_job("17", "train", "failed", exit_code=3))
    assert gpuyard("wait", "train").exit_code == 3
    assert gpuyard("wait", "10-20").exit_code == 3
    nobody = gpuyard("wait", "100-200")
    assert (nobody.exit_code, "there is no such job" in nobody.stderr) == (3, True)


@pytest.mark.parametrize("output", ["json", "yaml", "name"])
def test_programs_get_the_answer_as_they_like(gpuyard: Run, output: str) -> None:
    result = gpuyard("submit", "-o", output, "--", "date")
    expected = {"json": '{\n  "jobs": [', "yaml": "jobs:\n", "name": "1\n"}
    assert result.stdout.startswith(expected[output])


# ------------------------------------------------------------------------------------------------------------ following


def ends_as(yard: Yard, state: str, **more: int) -> None:
    """The job the yard takes next has run once its log has been read."""
    yard.submitted_state = "running"
    yard.logs[("1", 0, 1)] = [b"hello\n", b"world\n"]
    yard.after_log = lambda id: yard.jobs.update({id: a_job(id, "train", state, **more)})


@pytest.mark.parametrize(
    ("state", "more", "code"),
    [
        ("succeeded", {"exit_code": 0}, 0),
        ("failed", {"exit_code": 3}, 3),
        ("failed", {}, 100),
        ("failed", {"exit_code": 0}, 100),
        ("cancelled", {"exit_code": 143}, 103),
    ],
)
def test_run_shows_what_the_job_writes_and_ends_as_it_does(
    gpuyard: Run, yard: Yard, state: str, more: dict[str, int], code: int
) -> None:
    ends_as(yard, state, **more)
    result = gpuyard("run", "--gpus", "1", "--", "date")
    assert (result.exit_code, result.stdout) == (code, "hello\nworld\n")
    assert f"job 1 {state}" in result.stderr


def test_submit_follows_only_if_asked(gpuyard: Run, yard: Yard) -> None:
    ends_as(yard, "failed", exit_code=3)
    result = gpuyard("submit", "--follow", "--", "date")
    assert (result.exit_code, result.stdout) == (3, "1\nhello\nworld\n")


def test_phases_are_told_once_each_where_nobody_looks(gpuyard: Run, yard: Yard) -> None:
    looks = iter(
        [
            a_job("17", state="waiting"),
            a_job("17", state="waiting"),
            a_job("17", state="starting", nodes=("node-1",)),
            a_job("17", state="cancelled", task_list=()),
        ]
    )
    yard.add(a_job("17"))
    yard._get_job = lambda asked: next(looks)  # type: ignore[method-assign]
    result = gpuyard("wait", "17")
    assert result.exit_code == 103
    assert result.stderr.splitlines() == [
        "job 17 queued",
        "job 17 starting on node-1",
        "job 17 cancelled after 0s",
    ]


def test_waiting_can_be_given_up(gpuyard: Run, yard: Yard) -> None:
    yard.add(a_job("17", state="waiting"))
    result = gpuyard("wait", "17", "--timeout", "200ms")
    assert (result.exit_code, "time is up; job 17 goes on" in result.stderr) == (124, True)


def test_waiting_for_what_is_not_there(gpuyard: Run) -> None:
    assert gpuyard("wait", "99").exit_code == 102
    assert gpuyard("logs", "-f", "99").exit_code == 102


def test_a_job_that_is_restarted_is_followed_on(gpuyard: Run, yard: Yard) -> None:
    first = a_job("17")
    second = replace(first, task_list=(replace(first.task_list[0], attempt=2),))
    yard.add(first)
    yard.logs = {("17", 0, 1): [b"one\n"], ("17", 0, 2): [b"two\n"]}
    steps = iter([second, replace(second, state="succeeded", ended_at=NOW)])
    yard.after_log = lambda id: yard.jobs.update({id: next(steps)})
    result = gpuyard("logs", "-f", "17")
    assert (result.exit_code, result.stdout) == (0, "one\ntwo\n")
