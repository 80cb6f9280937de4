"""Objects of one kind, followed: listed once, then every change as it happens, through all that goes wrong between.

Place in the flow: API server ─list, watch─▶ **follow** ─Listed, Changed, Gone─▶ whoever keeps a picture. Invariants:
between two `Listed` no change is left out; after a gap that cannot be closed (410) there is a new `Listed`, and what
is not in it is gone; a watch that has gone silent is noticed within SILENCE_S and opened anew where it stood; one
object that cannot be read keeps nobody from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from gpuyard.errors import KubeError, KubeRefusedError
from gpuyard.kubeapi.client import GONE, NOT_FOUND, KubeClient, Status, refusal
from gpuyard.kubeapi.salvage import salvaged
from gpuyard.platform.chance import some_of

PAGE: Final = 500
"""Objects asked for at once; a large cluster does not have to answer with all of them in one piece."""
WATCH_S: Final = 60
"""After so long the server ends a watch, and we open the next one: it cannot be dead for longer without our knowing."""
SILENCE_S: Final = WATCH_S + 15
MAX_EVENT_BYTES: Final = 16 << 20
ABSENT_WAIT_S: Final = 5.0
"""How often a kind that the cluster does not know is looked for again."""
FIRST_WAIT_MS: Final = 100
MOST_WAIT_MS: Final = 5_000

Object = TypeVar("Object")
Outage = Callable[[KubeError | None], None]
"""Told of every failure, and with None whenever the server has answered."""
Oddity = Callable[[str], None]
"""Told of every object that could not be read as it is."""


class Listed(msgspec.Struct, Generic[Object], frozen=True):
    """All there are; whatever else was known is gone."""

    objects: tuple[Object, ...]


class Changed(msgspec.Struct, Generic[Object], frozen=True):
    """One is new, or is different now."""

    object: Object


class Gone(msgspec.Struct, Generic[Object], frozen=True):
    """One is no longer there, or no longer among those asked for; as it last was."""

    object: Object


Change: TypeAlias = Listed[Object] | Changed[Object] | Gone[Object]


class _ListMeta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _List(msgspec.Struct):
    metadata: _ListMeta
    items: list[msgspec.Raw] | None = None


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


class _Meta(msgspec.Struct, rename="camel"):
    resource_version: str = ""
    namespace: Any = ""
    name: Any = ""


class _Versioned(msgspec.Struct):
    metadata: _Meta


_LISTS: Final = msgspec.json.Decoder(_List)
_EVENTS: Final = msgspec.json.Decoder(_Event)
_VERSIONS: Final = msgspec.json.Decoder(_Versioned)
_STATUSES: Final = msgspec.json.Decoder(Status)


class Follower(Generic[Object]):
    """One collection, decoded into the fields `kind` declares; everything else of the JSON is skipped."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        kind: type[Object],
        *,
        outage: Outage,
        selectors: Mapping[str, str] | None = None,
        optional: bool = False,
        oddity: Oddity = lambda said: None,
    ) -> None:
        """`optional`: a kind the cluster may not know, which then counts as one of which there is no object."""
        self._client = client
        self._path = path
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)
        self._selectors = dict(selectors or {})
        self._outage = outage
        self._optional = optional
        self._oddity = oddity
        self._version = ""
        self._failures = 0
        self._too_old = 0
        """How often the version we stood at was, since a watch was last of use."""

    async def changes(self) -> AsyncIterator[Change[Object]]:
        """For ever; whatever goes wrong is told to `outage` and tried again."""
        while True:
            try:
                if not self._version:
                    listed = await self._list()
                    self._outage(None)
                    yield listed
                stood = self._version
                async for change in self._watch():
                    yield change
                self._is_of_use()
                if self._version == stood:
                    # Somebody between us and the server may end every watch at once.
                    await asyncio.sleep(some_of(FIRST_WAIT_MS) / 1000)
            except KubeError as error:
                if self._is_absent(error):
                    self._version = ""
                    yield Listed(())
                    await asyncio.sleep(ABSENT_WAIT_S)
                else:
                    await self._pause(error)

    def _is_absent(self, error: KubeError) -> bool:
        return self._optional and isinstance(error, KubeRefusedError) and error.status == NOT_FOUND

    async def _pause(self, error: KubeError) -> None:
        """A version that is too old is no failure: we list anew, at once unless that does not help either.

        It has helped once a watch has told of something, or has lasted: a server may take up a watch only to say no.
        """
        if isinstance(error, KubeRefusedError) and error.status == GONE:
            self._version = ""
            self._too_old += 1
            if self._too_old == 1:
                return
        self._failures += 1
        self._outage(error)
        await asyncio.sleep(some_of(min(FIRST_WAIT_MS << min(self._failures, 16), MOST_WAIT_MS)) / 1000)

    def _is_of_use(self) -> None:
        self._failures = self._too_old = 0

    # ---------------------------------------------------------------------------------------------------------- list

    async def _list(self) -> Listed[Object]:
        found: list[Object] = []
        version = ""
        async for page in _pages(self._client, self._path, self._selectors):
            read = [self._read(raw) for raw in page.items or ()]
            found += [one for one in read if one is not None]
            version = page.metadata.resource_version
        # Only once all pages are there: what is watched from the version of a part would never be listed.
        self._version = version
        return Listed(tuple(found))

    # --------------------------------------------------------------------------------------------------------- watch

    async def _watch(self) -> AsyncIterator[Change[Object]]:
        params = {
            **self._selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(WATCH_S),
        }
        async with self._client.stream(self._path, params, SILENCE_S) as pieces:
            self._outage(None)
            async for line in _lines(pieces, self._path):
                change = self._change(line)
                self._is_of_use()
                if change is not None:
                    yield change

    def _change(self, line: bytes) -> Change[Object] | None:
        event = _decoded(_EVENTS, line, self._path)
        if event.type == "ERROR":
            said = _decoded(_STATUSES, event.object, self._path)
            raise refusal(said.code, bytes(event.object), f"to go on with {self._path}")
        self._version = _decoded(_VERSIONS, event.object, self._path).metadata.resource_version
        if event.type == "BOOKMARK":
            return None
        found = self._read(event.object)
        if found is None:
            return None
        return Gone(found) if event.type == "DELETED" else Changed(found)

    def _read(self, raw: msgspec.Raw) -> Object | None:
        """One object; None where it has to be left out."""
        found, odd = _object(self._decoder, raw, self._path)
        if odd:
            self._oddity(odd)
        read: Object | None = found
        return read


async def listed(
    client: KubeClient, path: str, kind: type[Object], selectors: Mapping[str, str] | None = None
) -> list[Object]:
    """All objects of a collection as they are now, for those who do not want to follow it."""
    decoder = msgspec.json.Decoder(kind)
    pages = _pages(client, path, selectors or {})
    found = [_object(decoder, raw, path)[0] async for page in pages for raw in page.items or ()]
    return [one for one in found if one is not None]


async def _pages(client: KubeClient, path: str, selectors: Mapping[str, str]) -> AsyncIterator[_List]:
    more = ""
    while True:
        params = {**selectors, "limit": str(PAGE), **({"continue": more} if more else {})}
        page: _List = _decoded(_LISTS, await client.get(path, params), path)
        yield page
        more = page.metadata.continue_
        if not more:
            return


async def _lines(pieces: AsyncIterator[bytes], path: str) -> AsyncIterator[bytes]:
    """Whole lines of a stream; an event may come in many pieces."""
    held: list[bytes] = []
    size = 0
    async for piece in pieces:
        first, *rest = piece.split(b"\n")
        held.append(first)
        size += len(first)
        for line in rest:
            whole = b"".join(held)
            if whole:
                yield whole
            held, size = [line], len(line)
        if size > MAX_EVENT_BYTES:
            raise KubeError(f"an event of {path} is larger than {MAX_EVENT_BYTES >> 20} MiB")


def _object(decoder: msgspec.json.Decoder[Any], raw: msgspec.Raw, path: str) -> tuple[Any, str]:
    """One object, without those of its fields that are of a wrong type, and what is odd about it; None: all of it."""
    try:
        return decoder.decode(raw), ""
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        about = _decoded(_VERSIONS, raw, path).metadata
        named = f"{about.namespace}/{about.name}" if about.namespace else about.name
        found = salvaged(raw, decoder.type)
        if found is None:
            return None, f"{named} cannot be read and is left out: {error}"
        return found[0], f"{named} is read without {', '.join(found[1])}: {error}"


def _decoded(decoder: msgspec.json.Decoder[Any], content: bytes | msgspec.Raw, path: str) -> Any:  # noqa: ANN401
    try:
        return decoder.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise KubeError(f"the API server's answer about {path} cannot be read: {error}") from None
