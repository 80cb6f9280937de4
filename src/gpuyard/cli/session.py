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

    def __init__(self, context: str = "", url: str = "", token_file: str = "", **cluster: str) -> None:
        """`cluster`: flags about a Kubernetes cluster."""
        self._flags = {"context": context, "url": url, "token_file": token_file, **cluster}

    @cached_property
    def settings(self) -> Settings:
        from gpuyard.sdk.config import Flags, resolve

        return resolve(Flags(**self._flags))

    @cached_property
    def client(self) -> Client:
        from gpuyard.sdk.config import make_client

        return make_client(self.settings)

    @property
    def on_kubernetes(self) -> bool:
        """Whether a Kubernetes cluster is to answer, and no server."""
        if self._flags.get("namespace") and not self.settings.on_kubernetes:
            raise click.UsageError("-n is for pods of a Kubernetes cluster: add --kubernetes, or a context of one.")
        return self.settings.on_kubernetes

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


_SERVER: Final = (
    click.option("--context", default="", metavar="NAME", help="The context to use; see gpuyard config view."),
    click.option("--url", default="", help="The address of the server instead."),
    click.option("--token-file", default="", metavar="FILE", help="A file that holds the token."),
)
_CLUSTER: Final = (
    click.option(
        "--kubernetes", is_flag=True, help="Ask a Kubernetes cluster: that of the context, else as kubectl finds it."
    ),
    click.option("--kubeconfig", default="", metavar="FILE", help="The cluster of that kubeconfig."),
    click.option("--kube-context", default="", metavar="NAME", help="And that context of it."),
    click.option("--system-namespace", default="", metavar="NS", help="Where its scheduler's own objects are."),
)


def connected(command: Command) -> Command:
    """Give a command its session as first argument, and the flags that choose the server."""

    @functools.wraps(command)
    def with_session(context: str, url: str, token_file: str, **given: Any) -> Any:  # noqa: ANN401
        return _within(Session(context, url, token_file), command, given)

    return _with_options(with_session, _SERVER)


def connected_anywhere(command: Command) -> Command:
    """The same for a command that a Kubernetes cluster can answer, too."""

    @functools.wraps(command)
    def with_session(
        context: str,
        url: str,
        token_file: str,
        kubernetes: bool,
        kubeconfig: str,
        kube_context: str,
        system_namespace: str,
        **given: Any,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        named = kubernetes or bool(kubeconfig or kube_context)
        if named and url:
            raise click.UsageError("--url names a server, and --kubernetes a cluster: keep one of the two.")
        session = Session(
            context,
            url,
            token_file,
            kubernetes="yes" if named else "",
            kubeconfig=kubeconfig,
            kube_context=kube_context,
            namespace=given.pop("namespace", ""),
            system_namespace=system_namespace,
        )
        return _within(session, command, given)

    return _with_options(with_session, (*_SERVER, *_CLUSTER))


namespace_option: Final = click.option(
    "-n", "--namespace", default="", metavar="NS", help="Kubernetes: where the pod is.  [default: the context's]"
)


def _within(session: Session, command: Command, given: dict[str, Any]) -> Any:  # noqa: ANN401
    try:
        return command(session, **given)
    finally:
        session.close()


def _with_options(command: Command, options: tuple[Callable[[Command], Command], ...]) -> Command:
    for option in reversed(options):
        command = option(command)
    return command
