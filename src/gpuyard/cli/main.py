"""The `gpuyard` command: its nouns, and how every error ends.

Invariant: a person never sees a stack trace. What they did wrong is explained (exit code 2); what we did wrong is
called a bug, with the trace only under GPUYARD_DEBUG=1 (exit code 70).
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, Final

import click

from gpuyard import __version__
from gpuyard.cli.demo import demo
from gpuyard.cli.plan import plan
from gpuyard.cli.scenario import scenario
from gpuyard.cli.schema import schema
from gpuyard.errors import GpuyardError

USAGE: Final = 2
BUG: Final = 70
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141
DEBUG: Final = "GPUYARD_DEBUG"


class Gpuyard(click.Group):
    """The root of all commands; every way out of the program leads through `main`."""

    def main(self, *args: Any, **extra: Any) -> Any:  # noqa: ANN401 - as click declares it
        extra["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):
            # A terminal that cannot show a character gets a question mark, not a crash.
            if hasattr(stream, "reconfigure"):
                stream.reconfigure(errors="replace")
        sys.exit(self._exit_code(*args, **extra))

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
            return _pipe_closed()
        except GpuyardError as error:
            click.echo(f"error: {_printable(str(error))}", err=True)
            return USAGE
        except Exception as error:
            return _bug(error)


def _pipe_closed() -> int:
    """Whoever read our output has seen enough; Python must not try to write the rest when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED


def _bug(error: Exception) -> int:
    if os.environ.get(DEBUG) == "1":
        traceback.print_exception(error)
    what = _printable(f"{type(error).__name__}: {error}").splitlines()[0]
    click.echo(f"error: this is a bug in gpuyard {__version__} ({what})", err=True)
    click.echo(f"  please report it with your input and what {DEBUG}=1 prints", err=True)
    return BUG


def _printable(text: str) -> str:
    """A file's own words cannot steer the terminal."""
    return "".join(char if char.isprintable() or char == "\n" else f"\\x{ord(char):02x}" for char in text)


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
    gpuyard plan --cluster cluster.yaml          what the next cycle would decide
    gpuyard plan --cluster cluster.yaml job.yaml what would happen to that job
    gpuyard scenario check tests/scenarios/      judge rules written as examples
    """


for command in (demo, plan, scenario, schema):
    cli.add_command(command)


def main() -> None:
    cli.main(prog_name="gpuyard")
