"""The program around `vdk run`, with stand-ins for vdk: what it is given, and what its exit codes tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from gpuyard.model.jobs import DEFAULT_PRIORITY
from gpuyard.vdk.control.launch import (
    PLATFORM_ERROR,
    PROGRAM,
    REQUIREMENTS_FAILED,
    SKIPPED,
    SOURCES_FAILED,
    VDK_MISSING,
    Start,
    Vdk,
    submission,
)
from gpuyard.vdk.control.needs import Needs
from gpuyard.vdk.control.sources import unpacked_zip
from gpuyard.vdk.control.state import Deployment, JobDefinition, JobKey, Version
from gpuyard.worlds.standalone.intents import Submission
from tests.vdk.control.folders import config, packed, wheel

NAME = "train-model"
TIMEOUT_S = 120
ODD = """it's "odd" $(touch /tmp/never) \\ `x`\nnext"""


def prepared(
    folder: Path, vdk: str, *, shell: str = "/bin/sh", files: Mapping[str, str | bytes] | None = None
) -> dict[str, str]:
    """The variables of a task, with this text as its vdk."""
    (folder / "parcel").write_bytes(
        unpacked_zip(packed({"config.ini": config("a"), "10 odd's.py": "x", **(files or {})})).archive,
    )
    program = folder / "bin" / "vdk"
    program.parent.mkdir()
    program.write_text(f"#!{shell}\n{vdk}\n")
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "GPUYARD_DATA_JOB": NAME,
        "GPUYARD_PARCEL": str(folder / "parcel"),
        "GPUYARD_VDK_COMMAND": "vdk",
        "GPUYARD_VDK_ARGUMENTS": json.dumps({"odd": ODD}),
        "GPUYARD_JOB_ID": "17",
        "GPUYARD_RESTART_COUNT": "0",
    }


def run(folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return subprocess.run(
        ["/bin/sh", "-c", PROGRAM], env=env, cwd=work, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


def test_vdk_finds_the_folder_of_the_job_and_its_arguments_whatever_they_hold(tmp_path: Path) -> None:
    env = prepared(tmp_path, 'pwd; ls "$2"; printf "%s|" "$@"; echo; echo $VDK_EXECUTION_ID $VDK_ATTEMPT_ID')
    done = run(tmp_path, env)
    assert done.returncode == 0, done.stderr
    folder, *listed, words, ids = done.stdout.splitlines()
    assert folder == str(tmp_path / "work" / "sources")
    assert listed == ["10 odd's.py", "config.ini"]
    assert words == f"run|{NAME}|--arguments|{env['GPUYARD_VDK_ARGUMENTS']}|"
    assert ids == "17 17-0"


def test_an_attempt_finds_nothing_of_the_one_before_among_its_sources(tmp_path: Path) -> None:
    env = prepared(tmp_path, 'ls "$2"; touch "$2/left"')
    assert run(tmp_path, env).stdout == run(tmp_path, env).stdout


@pytest.mark.parametrize(
    ("says", "code", "ends"),
    [
        ("Success", 0, 0),
        ("User error", 1, 1),
        ("User error", 121, 1),
        ("Platform error", 1, PLATFORM_ERROR),
        ("Skipped", 0, SKIPPED),
        ("", 7, 1),
        ("", 0, 0),
    ],
)
def test_whose_fault_it_was_is_told_by_the_code(tmp_path: Path, says: str, code: int, ends: int) -> None:
    message = f"""echo '{{"vdk_version": "1", "status": "{says}"}}' > "$VDK_TERMINATION_MESSAGE_WRITER_OUTPUT_FILE";"""
    assert run(tmp_path, prepared(tmp_path, f"{message if says else ''} exit {code}")).returncode == ends


def test_a_message_of_an_attempt_before_is_not_taken_for_its_own(tmp_path: Path) -> None:
    env = prepared(tmp_path, "exit 0")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "termination-message").write_text('{"status": "Platform error"}')
    assert run(tmp_path, env).returncode == 0


def test_a_machine_without_vdk_says_so_and_the_second_place_is_tried(tmp_path: Path) -> None:
    env = prepared(tmp_path, "echo found")
    done = run(tmp_path, {**env, "GPUYARD_VDK_COMMAND": "no-such-vdk"})
    assert done.returncode == VDK_MISSING
    assert "this machine has no program no-such-vdk that user" in done.stderr
    second = {**env, "GPUYARD_VDK_COMMAND": "no-such-vdk", "GPUYARD_VDK_FOUND": str(tmp_path / "bin" / "vdk")}
    assert run(tmp_path, second).stdout == "found\n"


def test_a_vdk_whose_python_is_not_there_is_none(tmp_path: Path) -> None:
    env = prepared(tmp_path, "echo never")
    (tmp_path / "bin" / "vdk").write_text("#!/no/such/python\n")
    assert run(tmp_path, env).returncode == VDK_MISSING
    (tmp_path / "bin" / "vdk").write_text("#!/etc/passwd\n")
    assert run(tmp_path, env).returncode == VDK_MISSING


def test_a_parcel_that_is_none_is_told_apart(tmp_path: Path) -> None:
    env = prepared(tmp_path, "echo never")
    (tmp_path / "parcel").write_bytes(b"no tar at all")
    done = run(tmp_path, env)
    assert (done.returncode, done.stdout) == (SOURCES_FAILED, "")
    assert "cannot be unpacked" in done.stderr


def test_vdk_has_its_grace_when_all_are_told_to_stop(tmp_path: Path) -> None:
    env = prepared(tmp_path, "trap 'echo saved; exit 3' TERM; echo ready; while :; do sleep 0.05; done")
    (tmp_path / "work").mkdir()
    with subprocess.Popen(
        ["/bin/sh", "-c", PROGRAM], env=env, cwd=tmp_path / "work", stdout=subprocess.PIPE, text=True, process_group=0
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.read() == "saved\n"
        assert process.wait(10) == 1


def test_vdk_that_was_killed_is_told_by_its_signal(tmp_path: Path) -> None:
    began = time.monotonic()
    assert run(tmp_path, prepared(tmp_path, "kill -9 $$; sleep 60")).returncode == 137
    assert time.monotonic() - began < 20


# --------------------------------------------------------------------------------------------------------- requirements


@pytest.mark.slow
def test_what_requirements_name_is_there_beside_all_that_vdk_has(tmp_path: Path) -> None:
    name, data = wheel("probe", "WORD = 'installed'\n")
    files: dict[str, str | bytes] = {"requirements.txt": f"# of the job\nmsgspec\n./{name}\n", name: data}
    vdk = "import msgspec, probe, sys; print(probe.WORD, msgspec.__name__, sys.argv[1:3])"
    env = prepared(tmp_path, vdk, shell=sys.executable, files=files)
    done = run(tmp_path, env)
    assert done.stdout == f"installed msgspec ['run', '{NAME}']\n", done.stderr
    assert run(tmp_path, env).stdout == done.stdout, "and an attempt after it starts afresh"
    assert (tmp_path / "work" / "packages").is_dir()
    assert subprocess.run([sys.executable, "-c", "import probe"], check=False, capture_output=True).returncode == 1


@pytest.mark.slow
def test_requirements_that_cannot_be_had_are_told_apart_with_pips_words(tmp_path: Path) -> None:
    files = {"requirements.txt": "--no-index\nno-such-thing-anywhere==1.0\n"}
    done = run(tmp_path, prepared(tmp_path, "print('never')", shell=sys.executable, files=files))
    assert (done.returncode, done.stdout) == (REQUIREMENTS_FAILED, "")
    assert "no-such-thing-anywhere==1.0" in done.stderr
    assert done.stderr.endswith("gpuyard: what requirements.txt names could not be installed\n")


@pytest.mark.parametrize("text", ["", "\n", "# nothing yet\n  \n"])
def test_requirements_without_a_word_need_no_environment(tmp_path: Path, text: str) -> None:
    done = run(tmp_path, prepared(tmp_path, "echo ran", files={"requirements.txt": text}))
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert not (tmp_path / "work" / "packages").exists()


def test_a_vdk_that_has_no_python_cannot_have_requirements_beside_it(tmp_path: Path) -> None:
    done = run(tmp_path, prepared(tmp_path, "echo never", files={"requirements.txt": "msgspec\n"}))
    assert (done.returncode, done.stdout) == (VDK_MISSING, "")
    assert "requirements.txt needs the Python of" in done.stderr


# ---------------------------------------------------------------------------------------------------------- submissions


def submitted(needs: Needs, vdk: Vdk | None = None) -> Submission:
    deployment = Deployment("d" * 64, True, 5, "ann", python_version="3.11")
    job = JobDefinition(
        JobKey("vision", NAME), 1, "ann", versions=(Version("d" * 64, 1, "ann", needs),), deployment=deployment
    )
    return submission(job, deployment, Start("bob", "manual/vdk-control-cli", {"a": 1}), vdk or Vdk())


def test_a_plain_job_may_be_moved_and_stopped_for_others() -> None:
    made = submitted(Needs(gpu_milli=2000))
    assert (made.name, made.user, made.form.queue) == (NAME, "bob", "vision")
    assert (made.form.preemptible, made.form.movable, made.form.priority) == (True, True, DEFAULT_PRIORITY)
    assert made.form.tasks[0].request.devices == 2
    assert made.work.parcel == "d" * 64
    assert dict(made.work.env)["GPUYARD_VDK_ARGUMENTS"] == '{"a":1}'


def test_a_job_with_priority_is_never_stopped_for_others_and_one_that_says_so_is_not_moved() -> None:
    firm = submitted(Needs(priority=True)).form
    assert not firm.preemptible
    assert firm.priority > DEFAULT_PRIORITY
    assert not submitted(Needs(movable=False)).form.movable


def test_a_job_with_priority_is_moved_only_if_it_says_that_it_can_be_checkpointed() -> None:
    assert not submitted(Needs(priority=True)).form.may_move
    assert submitted(Needs(priority=True, checkpointable=True)).form.may_move
    assert not submitted(Needs(priority=True, checkpointable=True, movable=False)).form.may_move
    assert submitted(Needs()).form.may_move


def test_what_a_person_wrote_is_nowhere_in_the_text_that_is_run() -> None:
    made = submitted(Needs(), replace(Vdk(), command="/opt/odd place/vdk"))
    assert made.work.command[2] == PROGRAM
    assert NAME not in PROGRAM
