"""What is drawn at random. Everything below the shell takes seeds and keys as arguments instead."""

from __future__ import annotations

import random
import secrets
import uuid


def token(size_bytes: int) -> str:
    """Text that nobody can guess."""
    return secrets.token_hex(size_bytes)


def unguessable(bits: int) -> int:
    """A number nobody can guess."""
    return secrets.randbits(bits)


def new_key() -> str:
    """A key nobody has drawn before."""
    return uuid.uuid4().hex


def between(low: int, high: int) -> int:
    """So that many who fail together do not come back together."""
    return random.randint(low, high)


def some_of(most_ms: int) -> int:
    """Between half and all of a wait, so that those who wait together do not come back together."""
    return random.randint(most_ms // 2, most_ms)
