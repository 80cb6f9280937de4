"""Faces: further programs' ways to speak to the manager, which live beside /v1 and are built above the service.

Place in the flow: cli ─faces─▶ daemon ─Ground─▶ **face** ─routes─▶ app. A face brings routes, what it keeps open, and
work that goes on beside them. Invariant: a request reaches a face's route through the same guard as any other: host,
origin, size, and a credential on every path the face does not name as open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from gpuyard.service.call import Service
from gpuyard.service.certificates import Authority, Pair
from gpuyard.service.settings import Settings
from gpuyard.wire.access import Caller
from gpuyard.wire.rest import Problem

NOBODY: Final = Caller("", ())


class Ground(msgspec.Struct, frozen=True):
    """What a face stands on while it is open."""

    service: Service
    """Manager, sign-in, traffic: what the handlers of /v1 share."""
    settings: Settings
    authority: Authority
    pair: Pair
    """The manager's own certificate, for a face that listens by itself."""
    tell: Callable[[str, str], None]
    """One line for the person who started the manager: what, text."""


class Face(Protocol):
    """Opened after the state is loaded and before anybody can connect; closed after the last request."""

    @property
    def prefixes(self) -> tuple[str, ...]:
        """Its paths begin with one of these, each of which ends in a slash; nobody else's do."""

    @property
    def open_paths(self) -> frozenset[str]:
        """Paths that ask for no credential."""

    def routes(self) -> Sequence[BaseRoute]:
        """Asked before it is opened: a route finds what it needs when it is called."""

    def refusal(self, found: Problem) -> Response | None:
        """A refusal in the shape its clients read; None: as a problem."""

    async def open(self, ground: Ground) -> None: ...

    async def work(self) -> None:
        """Goes on beside the requests until it is cancelled. An error ends the manager; to return does not."""

    async def close(self) -> None:
        """Also called where `open` failed half-way."""


def caller_of(request: Request) -> Caller:
    """Whom the request speaks for; nobody on an open path."""
    found: Caller = request.scope.get("gpuyard.caller", NOBODY)
    return found


def face_of(faces: Sequence[Face], path: str) -> Face | None:
    """Whose path this is."""
    return next((face for face in faces if path.startswith(face.prefixes)), None)
