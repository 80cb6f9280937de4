"""`gpuyard scenario`: rules of scheduling, written as examples and judged."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.inputs import InputFile

if TYPE_CHECKING:
    from gpuyard.scenarios.verdict import Verdict

STARTER = Path(__file__).parents[1] / "examples" / "scenario.yaml"


@click.group()
def scenario() -> None:
    """Rules of scheduling, written as examples: a cluster, its jobs, and what must happen.

    \b
    gpuyard scenario new my-rule.yaml
    gpuyard scenario check my-rule.yaml
    """


@scenario.command(epilog="Exit code: 0 if all passed, 1 if any failed, 2 if a file is missing.")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True, type=InputFile())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per scenario, and nothing else.")
@click.option("-v", "--verbose", is_flag=True, help="Name the scenarios that passed, too.")
def check(paths: tuple[Path, ...], as_json: bool, verbose: bool) -> None:
    """Judge scenarios: run one cycle of each and compare it with what the file expects.

    Files may be golden scenarios (YAML) or conformance files (JSON); of a folder all .yaml files are judged. A
    file named - is read from a pipe.

    \b
    gpuyard scenario check tests/scenarios/
    gpuyard scenario check my-rule.yaml --json
    """
    from gpuyard.scenarios.check import check_paths

    passed = failed = 0
    for verdict in check_paths(paths):
        passed, failed = passed + verdict.passed, failed + (not verdict.passed)
        if as_json:
            _show_json(verdict)
        elif verbose or not verdict.passed:
            _show_lines(verdict)
    click.echo(f"{passed} passed, {failed} failed", err=as_json)
    click.get_current_context().exit(1 if failed else 0)


def _show_json(verdict: Verdict) -> None:
    import msgspec

    click.echo(msgspec.json.encode(verdict).decode())


def _show_lines(verdict: Verdict) -> None:
    from gpuyard.model.text import printable

    click.echo(f"{'ok  ' if verdict.passed else 'FAIL'} {verdict.id}")
    for line in _indented((*verdict.outcome_mismatches, *verdict.node_mismatches)):
        click.echo(printable(line))


def _indented(mismatches: Iterable[str]) -> list[str]:
    return [f"  {line}" for mismatch in mismatches for line in mismatch.splitlines()]


@scenario.command()
@click.argument("path", metavar="[FILE]", default="scenario.yaml", type=click.Path(path_type=Path, allow_dash=True))
@click.option("--force", is_flag=True, help="Overwrite the file if it exists.")
def new(path: Path, force: bool) -> None:
    """Write a commented scenario to start from; it passes `gpuyard scenario check`.

    \b
    gpuyard scenario new my-rule.yaml
    gpuyard scenario new -              print it instead
    """
    starter = STARTER.read_text(encoding="utf-8")
    if str(path) == "-":
        click.echo(starter, nl=False)
        return
    _write(path, starter, force)
    click.echo(f"wrote {path}; judge it with: gpuyard scenario check {path}")


def _write(path: Path, text: str, force: bool) -> None:
    from gpuyard.errors import InputError, Where

    where = Where(str(path))
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise InputError(
            "exists already", where=where, fix="choose another name, or overwrite it with --force"
        ) from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot be written: {why}", where=where) from None
