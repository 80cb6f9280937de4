"""The connection of a command to its server: which one, as whom, for which team.

Place in the flow: flags ─**session**─Settings─▶ Client. Invariant: nothing is read and nobody is asked before a command
needs it, so that help and wrong flags answer at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import click

if TYPE_CHECKING:
    from gpuyard.sdk.client import Client
    from gpuyard.sdk.config import Settings

Command = Callable[..., Any]

FORMS: Final = ("table", "wide", "json", "yaml", "jsonl", "name", "csv")
"""Of lists; commands about one thing have some of them."""


class Session:
    """What a command knows about its server."""

    def __init__(self, context: str = "", url: str = "", token_file: str = "") -> None:
        self._flags = {"context": context, "url": url, "token_file": token_file}

    @cached_property
    def settings(self) -> Settings:
        from gpuyard.sdk.config import Flags, resolve

        return resolve(Flags(**self._flags))

    @cached_property
    def client(self) -> Client:
        from gpuyard.sdk.config import make_client

        return make_client(self.settings)

    def output(self, given: str | None, allowed: tuple[str, ...], otherwise: str) -> str:
        """The form to answer in: the flag, else the setting where this command has that form."""
        if given:
            return given
        wished = self.settings.get("output")
        if wished and wished not in FORMS and wished not in allowed:
            origin = self.settings.values["output"].origin
            raise click.UsageError(f'there is no form "{wished}" ({origin} says so); there are: {", ".join(FORMS)}')
        return wished if wished in allowed else otherwise

    def close(self) -> None:
        if "client" in self.__dict__:
            self.client.close()


def connected(command: Command) -> Command:
    """Give a command its session as first argument, and the flags that choose the server."""

    @click.option("--context", default="", metavar="NAME", help="The context to use; see gpuyard config view.")
    @click.option("--url", default="", help="The address of the server instead.")
    @click.option("--token-file", default="", metavar="FILE", help="A file that holds the token.")
    @functools.wraps(command)
    def with_session(context: str, url: str, token_file: str, **given: Any) -> Any:  # noqa: ANN401
        session = Session(context, url, token_file)
        try:
            return command(session, **given)
        finally:
            session.close()

    return with_session
