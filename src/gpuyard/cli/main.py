"""The `gpuyard` command: its nouns, and how every error ends.

Invariant: a person never sees a stack trace. What they did wrong is explained (exit code 2); what we did wrong is
called a bug, with the trace only under GPUYARD_DEBUG=1 (exit code 70); output that cannot be written ends with 74.
"""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path
from typing import Any, Final

import click

from gpuyard import __version__
from gpuyard.cli.demo import demo
from gpuyard.cli.explain import explain
from gpuyard.cli.fake import fake
from gpuyard.cli.plan import plan
from gpuyard.cli.scenario import scenario
from gpuyard.cli.schema import schema
from gpuyard.cli.what_if import what_if
from gpuyard.errors import GpuyardError
from gpuyard.model.text import printable

USAGE: Final = 2
BUG: Final = 70
NOT_WRITTEN: Final = 74
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
DEBUG: Final = "GPUYARD_DEBUG"


class Gpuyard(click.Group):
    """The root of all commands; every way out of the program leads through `main`."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - as click declares it
        extra["standalone_mode"] = False
        if sys.stdout is None:
            # Our caller has closed it, so nobody wants to read it.
            sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 - lives as long as the program
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets a question mark, not a crash.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        sys.exit(self._exit_code(*args, **extra))

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            # Click itself would end the program with 1, as if something had failed.
            _drop_output()
            ctx.exit(PIPE_CLOSED)

    def _exit_code(self, *args: Any, **extra: Any) -> int:  # noqa: ANN401
        try:
            code = super().main(*args, **extra)
            sys.stdout.flush()
            return code if isinstance(code, int) else 0
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            click.echo("stopped", err=True)
            return INTERRUPTED
        except BrokenPipeError:
            _drop_output()
            return PIPE_CLOSED
        except GpuyardError as error:
            click.echo(f"error: {printable(str(error))}", err=True)
            return USAGE
        except Exception as error:
            # An error without a file's name is about what we print.
            about_output = isinstance(error, OSError) and error.filename is None
            return _not_written(error) if about_output else _bug(error)


def _drop_output() -> None:
    """Nothing more can be written; Python must not try to write the rest when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _not_written(error: Exception) -> int:
    _drop_output()
    click.echo(f"error: the output cannot be written: {getattr(error, 'strerror', None) or error}", err=True)
    return NOT_WRITTEN


def _bug(error: Exception) -> int:
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(error)
    what = printable(f"{type(error).__name__}: {error}").splitlines()[0]
    click.echo(f"error: this is a bug in gpuyard {__version__} ({what})", err=True)
    click.echo(f"  please report it with your input and what {DEBUG}=1 prints", err=True)
    return BUG


@click.group(
    cls=Gpuyard,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with: gpuyard demo",
)
@click.version_option(__version__, prog_name="gpuyard", message="%(prog)s %(version)s")
def cli() -> None:
    """Share a GPU cluster between teams: who runs where, and why.

    \b
    gpuyard demo                                 the core at work on an example
    gpuyard plan cluster.yaml                    what the next cycle would decide
    gpuyard plan --cluster cluster.yaml job.yaml what would happen to that job
    gpuyard explain llm --cluster cluster.yaml   why a job waits, and the ways out
    gpuyard what-if c.yaml --cluster cluster.yaml  what a change would make different
    gpuyard scenario check tests/scenarios/      judge rules written as examples
    gpuyard fake up --gpus 8 --product A100      GPUs that are not there, for nvidia-smi and all
    """


for command in (demo, plan, explain, what_if, scenario, schema, fake):
    cli.add_command(command)


def main() -> None:
    cli.main(prog_name="gpuyard")
