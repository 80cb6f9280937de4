"""How a data job is run on a machine: a small shell program around `vdk run`, and what its exit codes mean.

Place in the flow: Deployment ─▶ **launch** ─Submission─▶ manager ─▶ agent ─parcel─▶ the shell program ─▶ vdk. The
machine brings the sources as the job's parcel; the program unpacks them, finds vdk, installs what requirements.txt
names beside it, runs it, and ends with a code that says whose fault a failure is: vdk itself writes that to a file.
Invariant: nothing of a job is written into the program's text; it comes in variables and is quoted wherever it is used.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from gpuyard.model.jobs import DEFAULT_PRIORITY, Job, Task
from gpuyard.model.work import Work
from gpuyard.vdk.control.register import needs_of
from gpuyard.vdk.control.state import Deployment, JobDefinition
from gpuyard.worlds.standalone.intents import Submission

SOURCES_FAILED: Final = 120
VDK_MISSING: Final = 121
PLATFORM_ERROR: Final = 122
SKIPPED: Final = 123
REQUIREMENTS_FAILED: Final = 124
USER_ERROR: Final = 1

DEFAULT_COMMAND: Final = "vdk"
PRIORITY: Final = 75
"""Of a data job with priority: before the others of its team."""

LABEL: Final = "gpuyard.io/data-job"
VERSION_LABEL: Final = "gpuyard.io/data-job-version"
STARTED_LABEL: Final = "gpuyard.io/started-by"
VDK_LABEL: Final = "gpuyard.io/vdk-version"
PYTHON_LABEL: Final = "gpuyard.io/python-version"
MAX_LABEL: Final = 253

_SEES_VDK: Final = (
    "import sys; [print(f'import site; site.addsitedir({one!r})') for one in sys.path if one.endswith('-packages')]"
)
"""Prints a .pth file by which another environment also has all that this one has installed."""

PROGRAM: Final = f"""
fail() {{ echo "gpuyard: $2" >&2; exit "$1"; }}
no_vdk() {{ fail {VDK_MISSING} "this machine has no program $GPUYARD_VDK_COMMAND that user $(id -u) may run"; }}
home=$PWD
rm -rf "$home/sources" && mkdir -p "$home/sources/$GPUYARD_DATA_JOB" && cd "$home/sources" ||
  fail {SOURCES_FAILED} "the sources cannot be written to $home/sources"
tar -x -f "$GPUYARD_PARCEL" -C "$GPUYARD_DATA_JOB" || fail {SOURCES_FAILED} "the sources cannot be unpacked"
vdk=$(command -v "$GPUYARD_VDK_COMMAND") || vdk=$(command -v "${{GPUYARD_VDK_FOUND:-}}") || no_vdk
# An environment of the job's own, which has all of vdk's: pip fetches only what is missing there, and touches nothing.
own=$home/packages
install() {{
  first=$(sed -n '1s/^#! *//p' "$vdk")
  case "$first" in
    *python*) set -- $first ;;
    *) set -- "$(dirname "$(readlink -f "$vdk")")/python3" ;;
  esac
  command -v "$1" >/dev/null || fail {VDK_MISSING} "requirements.txt needs the Python of $vdk, which has none"
  "$@" -m venv --clear --without-pip "$own" &&
    site=$("$own/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))') &&
    "$@" -c "{_SEES_VDK}" > "$site/vdk.pth" &&
    (cd "$GPUYARD_DATA_JOB" && "$own/bin/python" -m pip install --quiet --no-input -r requirements.txt) >&2 ||
    fail {REQUIREMENTS_FAILED} "what requirements.txt names could not be installed"
  PATH=$own/bin:$PATH
  vdk() {{ "$own/bin/python" "$vdk" "$@"; }}
}}
vdk() {{ "$vdk" "$@"; }}
export PIP_DISABLE_PIP_VERSION_CHECK=1
if grep -q '^[[:space:]]*[^#[:space:]]' "$GPUYARD_DATA_JOB/requirements.txt" 2>/dev/null; then install; fi
said=$home/termination-message
rm -f "$said"
export VDK_TERMINATION_MESSAGE_WRITER_OUTPUT_FILE="$said"
export VDK_EXECUTION_ID="$GPUYARD_JOB_ID" VDK_ATTEMPT_ID="$GPUYARD_JOB_ID-$GPUYARD_RESTART_COUNT"
# The whole group is told to stop, and vdk may need its grace; a handler is not handed on, unlike an ignored signal.
trap : TERM INT HUP USR1 USR2
vdk run "$GPUYARD_DATA_JOB" --arguments "$GPUYARD_VDK_ARGUMENTS"
code=$?
# The shell's own word: it, or the Python it names, is not there or not for this user.
[ "$code" -ne 126 ] && [ "$code" -ne 127 ] || no_vdk
[ "$code" -lt 128 ] || exit "$code"
case "$(cat "$said" 2>/dev/null)" in
  *'"Platform error"'*) exit {PLATFORM_ERROR} ;;
  *'"Skipped"'*) exit {SKIPPED} ;;
esac
[ "$code" -eq 0 ] || exit {USER_ERROR}
"""


class Vdk(msgspec.Struct, frozen=True):
    """Where machines find the program."""

    command: str = DEFAULT_COMMAND
    """A name, looked for on the job's PATH, or a path."""
    found: str = ""
    """Where the manager itself finds it: tried second, because a job's PATH is a plain one."""


class Start(msgspec.Struct, frozen=True):
    """One start of a job: by whom, how, with what."""

    user: str
    started_by: str
    """manual/..., scheduled/..."""
    arguments: dict[str, Any] = {}


def submission(job: JobDefinition, deployment: Deployment, start: Start, vdk: Vdk) -> Submission:
    """The gpuyard job that carries out one execution."""
    needs = needs_of(job, deployment)
    form = Job(
        id="",
        queue=job.key.team,
        tasks=(Task("0", needs.request),),
        priority=PRIORITY if needs.priority else DEFAULT_PRIORITY,
        preemptible=not needs.priority,
        movable=needs.movable,
        checkpointable=needs.checkpointable,
        run_limit_ms=needs.run_limit_ms,
        labels=_labels(job, deployment, start),
    )
    return Submission(job.key.name, start.user, form, _work(job, deployment, start, vdk))


def _labels(job: JobDefinition, deployment: Deployment, start: Start) -> tuple[tuple[str, str], ...]:
    """By these an execution is known again; a person cannot set them."""
    labels = {
        LABEL: job.key.name,
        VERSION_LABEL: deployment.digest,
        STARTED_LABEL: start.started_by[:MAX_LABEL],
        VDK_LABEL: deployment.vdk_version[:MAX_LABEL],
        PYTHON_LABEL: deployment.python_version[:MAX_LABEL],
    }
    return tuple(sorted((key, value) for key, value in labels.items() if value))


def _work(job: JobDefinition, deployment: Deployment, start: Start, vdk: Vdk) -> Work:
    env = {
        "GPUYARD_DATA_JOB": job.key.name,
        "GPUYARD_VDK_ARGUMENTS": msgspec.json.encode(start.arguments).decode(),
        "GPUYARD_VDK_COMMAND": vdk.command,
        "GPUYARD_VDK_FOUND": vdk.found,
        "PYTHONUNBUFFERED": "1",
        # A machine of the cluster need not reach the network to run a job.
        "VDK_VERSION_CHECK_DISABLED": "true",
    }
    return Work(
        command=("/bin/sh", "-c", PROGRAM),
        env=tuple(sorted((name, value) for name, value in env.items() if value)),
        parcel=deployment.digest,
    )
