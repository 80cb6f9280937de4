"""What a scheduler tells of itself, for whoever asks about its cluster: whose pods it takes, and by which policy.

Place in the flow: scheduler ─**published**─▶ annotation of its lease ─**published**─▶ ask. Invariant: what cannot be
read, or was never written, is told apart from what was: answers then say that they assume the defaults.
"""

from __future__ import annotations

from typing import Final

import msgspec

from gpuyard import __version__
from gpuyard.policies.policy import DEFAULT, Policy
from gpuyard.worlds.kubernetes.settings import Settings

ANNOTATION: Final = "gpuyard.io/settings"


class Published(msgspec.Struct, frozen=True):
    """How a scheduler was started."""

    settings: Settings = Settings()
    policy: Policy = DEFAULT
    version: str = __version__


def published_text(settings: Settings, policy: Policy) -> str:
    return msgspec.json.encode(Published(settings, policy)).decode()


def read_published(text: str | None) -> Published | None:
    """None where nobody has told, or one of another version has told otherwise."""
    try:
        return msgspec.json.decode(text or "", type=Published)
    except msgspec.DecodeError:
        return None
