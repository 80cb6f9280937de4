"""Every bound of the REST side, in one place: what a request may be, and how many there may be at once."""

from __future__ import annotations

from typing import Final

from gpuyard.files.budget import Limits
from gpuyard.wire.agents import MAX_PARCEL_BYTES

MAX_BODY_BYTES: Final = 1 << 20
"""Of JSON that is not read like a file."""
MAX_JOB_BYTES: Final = 1 << 20
"""Of jobs and schedules, unless the manager was started with another --max-job-body."""
LEAST_JOB_BYTES: Final = 64 << 10
MOST_JOB_BYTES: Final = 16 << 20
"""What --max-job-body may say."""
MAX_FILE_BYTES: Final = 4 << 20
"""Of teams and change files."""
MAX_UPLOAD_BYTES: Final = MAX_PARCEL_BYTES
"""Of the sources of a data job, which go to a file as they come in."""
MAX_BODIES_BYTES: Final = 128 << 20
"""Of all bodies that are held at once. A user may hold a quarter of what is free."""
SMALL_BODY_BYTES: Final = 64 << 10
"""JSON of at most so much is decoded at once, without a turn."""

JOB_LIMITS: Final = Limits(
    values=20_000,
    nesting=64,
    keys=5_000,
    scalar_characters=256 << 10,
    text_characters=MAX_JOB_BYTES,
    anchors=500,
    aliases=1_000,
)
"""Of what a job or schedule in a body may hold: reading it takes a fraction of a second."""
FILE_LIMITS: Final = Limits(
    values=250_000,
    nesting=64,
    keys=20_000,
    scalar_characters=256 << 10,
    text_characters=MAX_FILE_BYTES,
    anchors=1_000,
    aliases=10_000,
)
"""Of teams and change files, which only admins and operators send."""
MAX_QUERY_BYTES: Final = 8 << 10
"""Of all parameters together."""
MAX_PATH_BYTES: Final = 2 << 10
"""As it is sent, before it is decoded."""
MAX_HEADER_BYTES: Final = 32 << 10
"""All header fields together."""
MAX_HEAD_BYTES: Final = 64 << 10
"""Request line and header fields, as they come in."""
HEAD_SECONDS: Final = 15.0
"""Within which request line and header fields must be there."""
MAX_KEY_LENGTH: Final = 255
"""Of an Idempotency-Key."""
BODY_SECONDS: Final = 30.0
"""Within which a body must arrive."""

MAX_PAGE: Final = 1_000
"""Items of a list in one answer."""
MAX_CURSOR_LENGTH: Final = 512
MAX_USAGE_ROWS: Final = 10_000
"""Of use in one answer."""
MAX_CAUSES: Final = 20
"""Of waste, per row of use; the greatest."""

MAX_IN_FLIGHT: Final = 512
"""Requests at once, streams aside. A user may have a quarter of those that are free."""
MAX_QUEUED_PER_USER: Final = 64
"""Requests of one user that wait for a turn of one kind."""
MAX_READING: Final = 2
"""Turns to read a large body, to check a job or to make a list."""
MAX_SEARCHING: Final = 1
"""Turns to search the log: it is read by the thread that writes it."""
SLICE_MS: Final = 5.0
"""For so long the event loop works on one answer before it looks at other requests."""
MAX_WATCHERS: Final = 1_000
"""Streams of events and followed logs, together."""
STREAMS_PER_TOKEN: Final = 50
"""Of one token, unless the manager is started with another number: --streams-per-token."""
MAX_THINKING: Final = 2
"""Turns to ask the scheduler: explain, plan, what-if, dry runs."""
HEARTBEAT_SECONDS: Final = 15.0
"""A quiet stream of events shows so often that it lives."""
RIGHTS_SECONDS: Final = 1.0
"""How often the rights behind a stream, and behind a caller that waits for one, are asked again."""
PARTING_SECONDS: Final = 1.0
"""Within which a reader must take the last message of a stream that is ended from this side."""
SEND_SECONDS: Final = 30.0
"""Within which a reader must take what it is sent."""
MAX_ENCODED_EVENTS: Final = 4_096
"""Events that are kept encoded for all their watchers."""

MAX_LOG_BYTES: Final = 64 << 20
"""Of a log that is not followed, in one answer."""
LOG_WAIT_MS: Final = 10_000
"""For so long a node is asked to wait for more of a log that is followed."""

MAX_FAILURES: Final = 30
"""Wrong credentials from one address per window; after that it is told to wait."""
FAILURE_WINDOW_MS: Final = 60_000
MAX_ADDRESSES: Final = 10_000
"""For which wrong credentials are counted."""
MAX_AUTHORIZATION_LENGTH: Final = 512
MAX_REACHED: Final = 10_000
"""Users whose reach by their roles is kept."""

MIN_TOKEN_MS: Final = 60_000
MAX_TOKEN_MS: Final = 400 * 24 * 3600 * 1000
"""Until a token expires."""
MAX_JOIN_TOKEN_MS: Final = 24 * 3600 * 1000
"""Until a token to join with expires."""
MAX_TOKEN_NAME: Final = 253
MAX_LABEL_LENGTH: Final = 253
MAX_NAME_LENGTH: Final = 200
"""Of users and teams: entries of the log are found by them."""
