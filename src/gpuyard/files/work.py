"""A job to submit: what it runs and what it asks for, read from one file or request body.

Place in the flow: text ─tree─▶ shape ─WorkSpec─▶ **work** ─WorkFile─▶ a Submission. The job it holds has no id yet: its
tasks are named by their index. Invariant: what is returned can be run as it is: no empty command, no variable or word
that a process cannot be given, no index twice.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Final

import msgspec
from msgspec.structs import replace

from gpuyard.errors import InputError, QuantityError
from gpuyard.files.durations import read_duration
from gpuyard.files.format import NAME_PATTERN, CommandSpec, PriorityWord, Reference, WorkSpec
from gpuyard.files.jobs import Asked, Surroundings, read_form
from gpuyard.files.place import Place
from gpuyard.files.shape import shaped
from gpuyard.files.source import read_text
from gpuyard.files.tree import parse
from gpuyard.model.jobs import DEFAULT_PRIORITY, Job
from gpuyard.model.work import (
    DEFAULT_GRACE_MS,
    MAX_ARRAY,
    MAX_COMMAND_BYTES,
    MAX_DEPENDENCIES,
    MAX_ENV_BYTES,
    MAX_GRACE_MS,
    MAX_RETRIES,
    PRIORITIES,
    Array,
    OnNodeLost,
    Work,
)

KIND: Final = "work"
EXAMPLE: Final = "docs/job-file.md"

RESERVED_PREFIX: Final = "gpuyard.io/"

MAX_LABELS: Final = 64
MAX_LABEL_LENGTH: Final = 253
MAX_PATH_LENGTH: Final = 4096
MAX_INDEX: Final = 10**9
MAX_PRIORITY: Final = 10**9
MAX_SPEC_LENGTH: Final = 64 << 10
"""Characters of an array that is written out index by index."""

SHELL: Final = ("/bin/sh", "-c")
RESERVED_ENV: Final = re.compile(r"GPUYARD_\w*|CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES")
_RANGE: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10})(?::([0-9]{1,10}))?)?")
_ARRAY_FIX: Final = 'write indices and ranges, and after % how many run at once: "0-9%4", "1,3,5-9:2%2"'


class WorkFile(msgspec.Struct, frozen=True):
    """What a job to submit says."""

    name: str
    form: Job
    """With no id; its tasks are called 0, 1, 2."""
    work: Work
    array: Array | None = None
    after: tuple[str, ...] = ()
    afterok: tuple[str, ...] = ()
    held: bool = False


def read_work_file(path: Path, around: Surroundings) -> WorkFile:
    """The job of a file."""
    return read_work(Place(str(path), parse(read_text(path), str(path), EXAMPLE)), around)


def read_work(place: Place, around: Surroundings) -> WorkFile:
    """The job that stands at the top of a file or body."""
    spec = shaped(place, WorkSpec, KIND)
    command = _command(spec.command, place.at("command"), "command")
    name = spec.name or _name_of(command)
    return WorkFile(
        name=name,
        form=_form(spec, name, place, around),
        work=_work(spec, command, place),
        array=_array(spec, place.at("array")),
        after=_references(spec.after, place.at("after")),
        afterok=_references(spec.afterok, place.at("afterok")),
        held=bool(spec.hold),
    )


def _name_of(command: tuple[str, ...]) -> str:
    """What a job is called that does not say: the program it runs."""
    first = command[-1].split()[0] if command[:2] == SHELL else command[0]
    name = PurePosixPath(first).name
    return name if re.fullmatch(NAME_PATTERN, name) else "job"


# ---------------------------------------------------------------------------------------------- what the scheduler sees


def _form(spec: WorkSpec, name: str, place: Place, around: Surroundings) -> Job:
    _check_labels(spec, place.at("labels"))
    form = read_form(Asked(spec, name, place, around))
    return replace(
        form,
        id="",
        priority=_priority(spec, place.at("priority")),
        tasks=tuple(replace(task, id=str(index)) for index, task in enumerate(form.tasks)),
    )


def _check_labels(spec: WorkSpec, place: Place) -> None:
    labels = spec.labels or {}
    if len(labels) > MAX_LABELS:
        raise place.error(f"{len(labels)} labels are more than {MAX_LABELS}", "keep those that somebody looks at")
    for key, value in labels.items():
        where = place.at(key).where_key
        if key.startswith(RESERVED_PREFIX):
            what = f'the label "{key}" belongs to gpuyard'
            raise InputError(what, where=where, fix=f"labels that begin with {RESERVED_PREFIX} are set by the manager")
        if not key or max(len(key), len(value)) > MAX_LABEL_LENGTH:
            fix = f"a key has 1 to {MAX_LABEL_LENGTH} characters, a value up to {MAX_LABEL_LENGTH}"
            raise InputError(f'the label "{key[:40]}" is empty or too long', where=where, fix=fix)


def _priority(spec: WorkSpec, place: Place) -> int:
    if spec.priority is None:
        return DEFAULT_PRIORITY
    if isinstance(spec.priority, PriorityWord):
        return PRIORITIES[spec.priority]
    if abs(spec.priority) > MAX_PRIORITY:
        raise place.error(f"priority {spec.priority} is out of range", "low is 25, normal 50, high 75, urgent 100")
    return spec.priority


# -------------------------------------------------------------------------------------------------------- what it runs


def _work(spec: WorkSpec, command: tuple[str, ...], place: Place) -> Work:
    checkpoint: tuple[str, ...] = ()
    if spec.checkpoint is not None:
        checkpoint = _command(spec.checkpoint, place.at("checkpoint"), "checkpoint")
    return Work(
        command=command,
        env=_env(spec, place.at("env")),
        workdir=_workdir(spec, place.at("workdir")),
        retries=_at_most(spec.retries or 0, MAX_RETRIES, "retries", place.at("retries")),
        on_node_lost=spec.on_node_lost or OnNodeLost.RESTART,
        grace_ms=_grace(spec, place.at("grace")),
        notice_signal=spec.notice_signal or "TERM",
        checkpoint=checkpoint,
        slurm_env=bool(spec.slurm_env),
    )


def _command(written: CommandSpec, place: Place, what: str) -> tuple[str, ...]:
    words = (*SHELL, written) if isinstance(written, str) else tuple(written)
    if not words or not words[-1 if isinstance(written, str) else 0].strip():
        raise place.error(f"{what} is empty", "write what to run: [python, train.py], or one text for /bin/sh -c")
    _refuse_nul(words, place)
    if sum(len(word.encode()) + 1 for word in words) > MAX_COMMAND_BYTES:
        raise place.error(f"{what} is longer than {MAX_COMMAND_BYTES >> 10} KiB", "put it into a script")
    return words


def _env(spec: WorkSpec, place: Place) -> tuple[tuple[str, str], ...]:
    pairs = tuple(sorted((name, str(value)) for name, value in (spec.env or {}).items()))
    for name, value in pairs:
        if RESERVED_ENV.fullmatch(name):
            where, fix = place.at(name).where_key, "leave it out: the job is given it with the place it gets"
            raise InputError(f"the variable {name} is set by gpuyard", where=where, fix=fix)
        _refuse_nul((value,), place.at(name))
    if sum(len(name) + len(value.encode()) + 2 for name, value in pairs) > MAX_ENV_BYTES:
        raise place.error(f"the variables are longer than {MAX_ENV_BYTES >> 10} KiB", "put them into a file")
    return pairs


def _workdir(spec: WorkSpec, place: Place) -> str:
    workdir = spec.workdir or ""
    _refuse_nul((workdir,), place)
    if workdir and not workdir.startswith("/"):
        raise place.error(f'workdir "{workdir}" is not a whole path', "begin it with /")
    if len(workdir.encode()) > MAX_PATH_LENGTH:
        raise place.error(f"workdir is longer than {MAX_PATH_LENGTH} bytes", "shorten it")
    return workdir


def _grace(spec: WorkSpec, place: Place) -> int:
    grace = read_duration(spec.grace, place)
    if grace is not None and grace > MAX_GRACE_MS:
        raise place.error(f"grace {spec.grace} is longer than an hour", "a job that must give way may take 1h at most")
    return DEFAULT_GRACE_MS if grace is None else grace


def _refuse_nul(words: tuple[str, ...], place: Place) -> None:
    if any("\0" in word for word in words):
        raise place.error(f"{place.name} holds the character NUL", "no process can be given it: remove it")


def _at_most(value: int, limit: int, what: str, place: Place) -> int:
    if value > limit:
        raise place.error(f"{what} must be at most {limit}, not {value}", "lower it")
    return value


# ---------------------------------------------------------------------------------------------- arrays and dependencies


def _array(spec: WorkSpec, place: Place) -> Array | None:
    return None if spec.array is None else place.read(array_of, str(spec.array), "array")


def array_of(text: str, what: str = "array") -> Array:
    """The indices `0-9`, `1,3,5-9:2`, and after `%` how many of them run at once."""
    listed, percent, at_once = text.partition("%")
    if len(text) > MAX_SPEC_LENGTH or (percent and not re.fullmatch("[1-9][0-9]{0,5}", at_once)):
        raise _array_error(text, what)
    indices: list[int] = []
    for part in listed.split(","):
        indices += _indices(part.strip(), text, what)
        if len(indices) > MAX_ARRAY:
            raise QuantityError(f"{what} has more than {MAX_ARRAY} elements", fix="submit several arrays")
    if len(set(indices)) < len(indices):
        raise QuantityError(f'{what} "{text[:60]}" names an index twice', fix="name each once")
    return Array(tuple(sorted(indices)), int(at_once) if percent else 0)


def _indices(part: str, text: str, what: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise _array_error(text, what)
    first, last, step = (int(group) if group else None for group in match.groups())
    assert first is not None
    end = first if last is None else last
    if end < first or step == 0 or end > MAX_INDEX:
        raise _array_error(text, what)
    found = range(first, end + 1, step or 1)
    if len(found) > MAX_ARRAY:
        raise QuantityError(f"{what} has more than {MAX_ARRAY} elements", fix="submit several arrays")
    return found


def _array_error(text: str, what: str) -> QuantityError:
    return QuantityError(f'{what} "{text[:60]}" is not a list of indices', fix=_ARRAY_FIX)


def _references(written: Reference | list[Reference] | None, place: Place) -> tuple[str, ...]:
    listed = written if isinstance(written, list) else [] if written is None else [written]
    if len(listed) > MAX_DEPENDENCIES:
        raise place.error(f"{len(listed)} jobs are more than {MAX_DEPENDENCIES}", "wait for a job that waits for them")
    return tuple(dict.fromkeys(str(reference) for reference in listed))
