"""How events look in lists."""

from __future__ import annotations

from gpuyard.cli.listing import Column, Kind
from gpuyard.cli.times import exact, since
from gpuyard.wire.rest import EventObject

EVENTS: Kind[EventObject] = Kind(
    EventObject,
    (
        Column("REVISION", lambda event, at: str(event.revision), key=lambda event: event.revision),
        Column("AGE", lambda event, at: since(event.at, at), lambda event: exact(event.at)),
        Column("KIND", lambda event, at: event.kind),
        Column("ACTOR", lambda event, at: event.actor),
        Column("TEAM", lambda event, at: event.team),
        Column("ABOUT", lambda event, at: ",".join(event.objects)),
        Column("WHAT", lambda event, at: event.text),
    ),
    lambda event: str(event.revision),
)
