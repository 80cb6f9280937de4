"""The `gpuyard` command: finding a command, and how every error ends.

Place in the flow: the shell ─argv─▶ **main** ─name─▶ commands.py ─▶ one command's module.
Invariant: a person never sees a stack trace. What stands in the way is explained (exit codes in exit_codes.py); what we
did wrong is called a bug, with the trace only under GPUYARD_DEBUG=1.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from gpuyard import __version__
from gpuyard.cli.commands import ALIASES, COMMANDS, SECTIONS
from gpuyard.cli.exit_codes import BUG, INTERRUPTED, NOT_WRITTEN, PIPE_CLOSED, code_of

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

DEBUG: Final = "GPUYARD_DEBUG"


class LazyGroup(click.Group):
    """Commands from a table; a module is loaded when its command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        name = ALIASES.get(cmd_name, cmd_name)
        return _load(COMMANDS[name].target) if name in COMMANDS else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name in COMMANDS or name in ALIASES or name.startswith("-"):
            return super().resolve_command(ctx, args)
        from gpuyard.files.suggest import did_you_mean

        meant = did_you_mean(name, (*COMMANDS, *ALIASES))
        raise click.UsageError(f'there is no command "{name}"{meant or "; gpuyard --help lists them"}', ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        names = [
            CompletionItem(name, help=entry.help) for name, entry in COMMANDS.items() if name.startswith(incomplete)
        ]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for heading, entries in SECTIONS.items():
            with formatter.section(heading):
                formatter.write_dl([(_names(name), entry.help) for name, entry in entries.items()])


def _load(target: str) -> click.Command:
    from importlib import import_module

    module, _, attribute = target.partition(":")
    command = getattr(import_module(f"gpuyard.cli.{module}"), attribute)
    assert isinstance(command, click.Command)
    return command


def _names(name: str) -> str:
    return ", ".join((name, *COMMANDS[name].aliases))


class Gpuyard(LazyGroup):
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
        except Exception as error:
            return _told(error)


def _drop_output() -> None:
    """Nothing more can be written; Python must not try to write the rest when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: Exception) -> int:
    """What is in the way, on stderr, and the code to end with."""
    from gpuyard.errors import GpuyardError
    from gpuyard.model.text import printable

    if isinstance(error, GpuyardError):
        click.echo(f"error: {printable(str(error))}", err=True)
        return code_of(error)
    # An error without a file's name is about what we print.
    about_output = isinstance(error, OSError) and error.filename is None
    return _not_written(error) if about_output else _bug(error, printable(f"{type(error).__name__}: {error}"))


def _not_written(error: Exception) -> int:
    _drop_output()
    click.echo(f"error: the output cannot be written: {getattr(error, 'strerror', None) or error}", err=True)
    return NOT_WRITTEN


def _bug(error: Exception, what: str) -> int:
    if os.environ.get(DEBUG) == "1":
        import traceback

        traceback.print_exception(error)
    click.echo(f"error: this is a bug in gpuyard {__version__} ({what.splitlines()[0]})", err=True)
    click.echo(f"  please report it with your input and what {DEBUG}=1 prints", err=True)
    return BUG


@click.group(
    cls=Gpuyard,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command has examples: gpuyard submit --help. Without a server: gpuyard demo",
)
@click.version_option(__version__, prog_name="gpuyard", message="%(prog)s %(version)s")
def cli() -> None:
    """Share a GPU cluster between teams: who runs where, and why.

    \b
    gpuyard up                                   start it here, with fake GPUs where there are none
    gpuyard submit --gpus 2 -- python train.py   a first job
    gpuyard ls                                   what runs, what waits, why and until when
    gpuyard logs -f 1                            what it writes
    gpuyard explain 1                            why it waits, and what would let it start
    """


def main() -> None:
    cli.main(prog_name="gpuyard")
