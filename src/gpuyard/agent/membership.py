"""What joining has left in the home: who this machine is, where its manager is, and its certificate.

Place in the flow: join ─▶ **membership** ─▶ stream, daemon. Apart from join.py, whose libraries only joining needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from gpuyard.errors import AgentError
from gpuyard.platform.files import write_private

CA: Final = "ca.pem"
CERTIFICATE: Final = "cert.pem"
KEY: Final = "key.pem"
JOINED: Final = "joined.json"


class Joined(msgspec.Struct, frozen=True):
    """Its name, and where the manager listens for agents."""

    node: str = ""
    agents: str = ""


def joined(home: Path) -> Joined:
    """Empty for a machine that has not joined."""
    path = home / JOINED
    if not path.exists():
        return Joined()
    try:
        return msgspec.json.decode(path.read_bytes(), type=Joined)
    except msgspec.DecodeError as error:
        raise AgentError(f"{path} cannot be read: {error}", fix="remove it and join again") from None


def store(home: Path, *, key: bytes, certificate: bytes, ca: bytes, told: Joined) -> None:
    """The name of the manager comes last: with it everything is there."""
    write_private(home / KEY, key)
    write_private(home / CERTIFICATE, certificate)
    write_private(home / CA, ca)
    write_private(home / JOINED, msgspec.json.encode(told))
