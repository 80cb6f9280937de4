"""The flags that describe a job, shared by submit, run and plan, and the request they make.

Place in the flow: flags, a job file, a script ─**job_flags**─JobRequest or the file's text─▶ the server. A file without
flags travels as its author wrote it, so that the server's errors name its lines.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard.cli.flags import ARRAY, BOUNDS, CPU, DURATION, GPUS, KEY_VALUE, MEMORY, PRIORITY, is_memory

if TYPE_CHECKING:
    from gpuyard.sdk.bodies import JobRequest, YamlText

Command = Callable[..., Any]

ON_NODE_LOST: Final = ("restart-after-lease", "wait", "fail")
FILE_ENDINGS: Final = (".yaml", ".yml", ".json", ".sh", ".py")
DIRECTIVE: Final = "#GPUYARD"
TAKE_SCRIPTS: Final = ("sh", "bash", "dash", "zsh", "ksh", "python", "python3", "perl", "ruby")
"""Interpreters that take a script as text."""
_TAKE_E: Final = ("perl", "ruby")

_OPTIONS: Final = (
    click.option("--name", help="The name of the job.  [default: that of the command]"),
    click.option("-t", "--team", help="The team that pays.  [default: GPUYARD_TEAM, or the context's]"),
    click.option("-g", "--gpus", type=GPUS, help="Of each task: 8, 0.5 of one, or memory of one: 6GiB.  [default: 1]"),
    click.option("--cpu", type=CPU, help="Cores of each task: 4, 0.5, 500m."),
    click.option("--memory", type=MEMORY, help="Host memory of each task: 64Gi."),
    click.option(
        "-N",
        "--nodes",
        type=click.IntRange(1),
        help="So many nodes, with --tasks tasks on each.  [default: 1 task on each]",
    ),
    click.option(
        "-n", "--tasks", type=click.IntRange(1), help="So many tasks, which start together; with --nodes: on each."
    ),
    click.option("--elastic", type=BOUNDS, metavar="MIN-MAX", help="Tasks come and go between these bounds."),
    click.option("-p", "--priority", type=PRIORITY, help="low, normal, high, urgent or a number."),
    click.option("--preemptible/--no-preemptible", default=None, help="Whether it may have to give way."),
    click.option("--time", "run_limit", type=DURATION, help="It is stopped after that: 2h, 1d12h."),
    click.option("--estimate", type=DURATION, help="How long it is thought to run; lets it fill gaps."),
    click.option("-a", "--array", type=ARRAY, help="Many jobs: 0-9, 1,3,5, 0-99%4 for four at a time."),
    click.option("--after", multiple=True, metavar="ID", help="Start once that job is over."),
    click.option("--afterok", multiple=True, metavar="ID", help="Start once that job has succeeded."),
    click.option("--retries", type=click.IntRange(0, 1000), help="How often it is started again if it fails."),
    click.option("-e", "--env", type=KEY_VALUE, multiple=True, help="A variable: NAME=VALUE."),
    click.option("--env-file", type=click.Path(path_type=Path), multiple=True, help="Variables, one a line."),
    click.option("-C", "--workdir", help="Where it runs, on the machine: . is here.  [default: a folder of its own]"),
    click.option("-l", "--label", type=KEY_VALUE, multiple=True, help="A label: k=v."),
    click.option("--model", multiple=True, help="GPU models that will do: H100."),
    click.option("--checkpoint", help="A command that saves its work, run when it must give way."),
    click.option("--grace", type=DURATION, help="From the notice that it must stop to the end.  [default: 30s]"),
    click.option("--on-node-lost", type=click.Choice(ON_NODE_LOST), help="If its machine is not heard of any more."),
    click.option("--hold", is_flag=True, default=None, help="Keep it from starting until it is released."),
    click.option("--slurm-env", is_flag=True, default=None, help="Also set SLURM_JOB_ID, SLURM_PROCID and the like."),
)


def _params(command: click.Command) -> list[click.Parameter]:
    """The flags, given to a command."""
    for option in reversed(_OPTIONS):
        option(command)
    return command.params


_FIELDS: Final = tuple(param.name for param in _params(click.Command(None)) if param.name)


def job_options(command: Command) -> Command:
    """The flags; the command gets them as one map `flags`, with only those that were given."""

    @functools.wraps(command)
    def with_flags(*arguments: Any, **given: Any) -> Any:  # noqa: ANN401
        flags = {name: given.pop(name) for name in _FIELDS}
        return command(*arguments, flags=_given(flags), **given)

    for option in reversed(_OPTIONS):
        option(with_flags)
    return with_flags


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in flags.items() if value is not None and value != ()}


def job_body(words: tuple[str, ...], flags: dict[str, Any], team: str) -> JobRequest | YamlText:
    """What to send for `FILE`, for `FILE` with flags, for a script, or for `-- CMD...`."""
    separated = click.get_current_context().meta.get(SEPARATED, False)
    if not words:
        raise click.UsageError("Name a job file, or a command after two dashes: -- python train.py")
    path = Path(words[0])
    if separated or (len(words) > 1 and not path.is_file()):
        return request_of({**_fields(flags, team), "command": list(words)})
    if len(words) > 1:
        raise click.UsageError(f"What is {words[1]!r}? A command stands after two dashes: -- {' '.join(words)}")
    if words[0] != "-" and not path.exists() and path.suffix not in FILE_ENDINGS:
        raise click.UsageError(f'There is no file "{words[0]}"; a command stands after two dashes: -- {words[0]}')
    return _from_file(path, flags, team)


SEPARATED: Final = "gpuyard.separated"


class JobCommand(click.Command):
    """A command whose words may follow two dashes; click itself does not tell whether they did."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta[SEPARATED] = "--" in args
        return super().parse_args(ctx, args)


# --------------------------------------------------------------------------------------------------------------- flags


def request_of(fields: dict[str, Any]) -> JobRequest:
    from gpuyard.sdk.bodies import JobRequest

    if fields.get("workdir"):
        fields["workdir"] = str(Path(fields["workdir"]).absolute())
    return JobRequest(**fields)


def _fields(flags: dict[str, Any], team: str) -> dict[str, Any]:
    """The fields of a job from its flags."""
    fields = {name: value for name, value in flags.items() if name not in _TRANSLATED}
    for name, translate in _TRANSLATED.items():
        if name in flags:
            fields.update(translate(flags[name]))
    variables = _variables(flags)
    if variables:
        fields["env"] = variables
    if "elastic" in flags and "nodes" in flags:
        raise click.UsageError(
            "--elastic is about single tasks; whole nodes come and go by nodes and gang in a job file."
        )
    if "elastic" in flags and "tasks" in flags:
        raise click.UsageError("--elastic already says how many tasks; leave out --tasks.")
    if team and "team" not in fields:
        fields["team"] = team
    return fields


_TRANSLATED: Final[dict[str, Callable[[Any], dict[str, Any]]]] = {
    "gpus": lambda text: {"gpu_memory": text} if is_memory(text) else {"gpus": text},
    "memory": lambda text: {"ram": text},
    "elastic": lambda bounds: {"gang": bounds[0], "tasks": bounds[1]},
    "label": lambda pairs: {"labels": dict(pairs)},
    "model": lambda names: {"model": list(names)},
    "after": lambda ids: {"after": list(ids)},
    "afterok": lambda ids: {"afterok": list(ids)},
    "env": lambda pairs: {},
    "env_file": lambda paths: {},
}


def _variables(flags: dict[str, Any]) -> dict[str, str]:
    """Files first, so that a flag can say otherwise."""
    variables: dict[str, str] = {}
    for path in flags.get("env_file", ()):
        variables.update(_read_variables(path))
    variables.update(dict(flags.get("env", ())))
    return variables


def _read_variables(path: Path) -> dict[str, str]:
    from gpuyard.errors import InputError, Where
    from gpuyard.files.source import read_text

    variables = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        text = line.strip().removeprefix("export ")
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        if not name.strip() or not equals:
            raise InputError(
                "no name and value", where=Where(str(path), number, 1), fix="write NAME=VALUE on each line"
            )
        variables[name.strip()] = _unquoted(value.strip())
    return variables


def _unquoted(value: str) -> str:
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'" else value


# --------------------------------------------------------------------------------------------------------------- files


def _from_file(path: Path, flags: dict[str, Any], team: str) -> JobRequest | YamlText:
    from gpuyard.cli.inputs import PIPE
    from gpuyard.files.source import read_text
    from gpuyard.sdk.bodies import YamlText

    text = read_text(PIPE if str(path) == "-" else path)
    if text.startswith("#!"):
        return _from_script(path, text, flags, team)
    if not _fields(flags, ""):
        written = _written(path, text)
        if not team or "team" in written or "queue" in written:
            return YamlText(text)
    else:
        written = _written(path, text)
    return request_of(_merged(written, _fields(flags, "" if "team" in written or "queue" in written else team), path))


def _written(path: Path, text: str) -> dict[str, Any]:
    """The fields of a job file as they are written."""
    from gpuyard.files.tree import parse

    fields = _plain(parse(text, str(path)))
    return fields if isinstance(fields, dict) else {}


def fields_in_file(words: tuple[str, ...]) -> dict[str, Any]:
    """The fields of the one file that is named; none for a command or a script."""
    from gpuyard.files.source import read_text

    separated = click.get_current_context().meta.get(SEPARATED, False)
    if separated or len(words) != 1 or not Path(words[0]).is_file():
        return {}
    text = read_text(Path(words[0]))
    return {} if text.startswith("#!") else fields_of(words[0], text)


def fields_of(name: str, text: str) -> dict[str, Any]:
    """The fields that a file says, by the name it is called in errors."""
    return _written(Path("standard input" if name == "-" else name), text)


def changed_fields(written: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The fields of a job that is known, with what the flags say instead."""
    return _merged(written, _fields(flags, ""), Path("the job"))


def refuse_array(job: JobRequest | YamlText, instead: str) -> None:
    """Before anything is sent: what many jobs write at once cannot be followed."""
    from gpuyard.sdk.bodies import YamlText

    array = fields_of("the job", job.text).get("array") if isinstance(job, YamlText) else job.array
    if array is not None:
        raise click.UsageError(f"An array cannot be followed as a whole; {instead}.")


def runs_something(path: Path) -> bool:
    """Whether a file is a job to submit: a script, or a map with a command. One that cannot be read is none."""
    from gpuyard.errors import InputError
    from gpuyard.files.source import read_text

    try:
        text = read_text(path)
        return text.startswith("#!") or "command" in _written(path, text)
    except InputError:
        return False


def _plain(spot: Any) -> Any:  # noqa: ANN401
    """A tree without its places; numbers keep their exact text where they are decimal."""
    if isinstance(spot.value, list):
        return [_plain(item) for item in spot.value]
    if isinstance(spot.value, dict):
        return {key: _plain(value) for key, value in spot.value.items()}
    return spot.value


_INSTEAD: Final = {"gpus": ("gpu_memory", "mig"), "gpu_memory": ("gpus", "mig", "devices"), "team": ("queue",)}
"""What a flag replaces besides the field of its own name."""


def _merged(written: dict[str, Any], fields: dict[str, Any], path: Path) -> dict[str, Any]:
    from gpuyard.errors import InputError, Where
    from gpuyard.files.suggest import did_you_mean
    from gpuyard.sdk.bodies import JobRequest

    merged = {
        name: value for name, value in written.items() if not any(name in _INSTEAD.get(new, ()) for new in fields)
    }
    for name in ("env", "labels"):
        if name in fields and isinstance(written.get(name), dict):
            fields[name] = {**written[name], **fields[name]}
    merged |= fields
    known = JobRequest.__struct_fields__
    for name in merged:
        if name not in known:
            what = f'there is no field "{name}"{did_you_mean(name, known)}'
            raise InputError(what, where=Where(str(path)), fix="docs/job-file.md lists them")
    return merged


def _from_script(path: Path, text: str, flags: dict[str, Any], team: str) -> JobRequest:
    """A script travels as text; its #GPUYARD lines are flags, and those on the command line win."""
    first, *rest = text.splitlines()
    directives = [line for line in rest if line.startswith(f"{DIRECTIVE} ")]
    inside = _directive_flags(path, directives)
    fields = _fields({**inside, **flags}, team)
    fields.setdefault("name", path.stem)
    return request_of({**fields, "command": _script_command(path, first, text)})


def _directive_flags(path: Path, lines: list[str]) -> dict[str, Any]:
    import shlex

    words = [word for line in lines for word in shlex.split(line.removeprefix(DIRECTIVE), comments=True)]
    command = click.Command(str(path))
    _params(command)
    with command.make_context(str(path), words) as ctx:
        return _given(ctx.params)


def _script_command(path: Path, first: str, text: str) -> list[str]:
    from gpuyard.errors import InputError, Where

    interpreter = first.removeprefix("#!").split()
    program = Path(interpreter[-1]).name if interpreter else ""
    if program not in TAKE_SCRIPTS:
        fix = f"give it as a command that the machine has: -- {path}"
        raise InputError(f'"{program}" takes no script as text', where=Where(str(path), 1, 1), fix=fix)
    return [*interpreter, "-e" if program in _TAKE_E else "-c", text]
