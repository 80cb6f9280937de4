"""A moment as the API writes it: RFC 3339 with its zone, which is UTC; described as such, so that clients made from the
description read it as a moment and not as text."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, TypeAlias

import msgspec

Moment: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
