"""Hostile clients: each loops one kind of expensive request over its own connection, as fast as it is answered.

`python -m tests.security.hostile_clients PORT SECONDS` reads one token per line from its input, each of another user,
and prints how often which kind was answered how. It is a process of its own, so that what it costs is not the
manager's. A kind that is refused is asked again at once, whatever Retry-After says.
"""

from __future__ import annotations

import http.client
import json
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

MIB: Final = 1 << 20
USERS: Final = 12
"""One per kind, and two with slow bodies."""
YAML: Final = "application/yaml"
JSON: Final = "application/json"
SLOW_CONNECTIONS: Final = 100

Request = tuple[str, str, bytes | str, str]
"""Method, path, body, kind of the body."""


def filled(head: str, piece: str, tail: str = "", size: int = MIB) -> str:
    """So many pieces that the whole is as large as a job may be."""
    return head + piece * ((size - len(head) - len(tail) - 64) // len(piece)) + tail


def job(**fields: object) -> str:
    return json.dumps({"command": ["true"], "hold": True, **fields})


KEYS: Final = "".join(f"  k{number}: v\n" for number in range(90_000))
MOST_KEYS: Final = "".join(f"  KEY_{number:04}: value-{number:04}\n" for number in range(4_900))
ANCHORS: Final = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]\n"
    for before, after in zip("abcdefghi", "bcdefghij", strict=True)
)
TOO_LARGE: Final = "a: [" + "1," * (7 * MIB) + "1]"

KINDS: Final[dict[str, tuple[Request, ...]]] = {
    "a yaml list": (("POST", "/v1/jobs", filled("command: [", "x,", "x]"), YAML),),
    "the largest job": (("POST", "/v1/plan", f"command: [x]\nenv:\n{MOST_KEYS}", YAML),),
    "deep yaml": (
        ("POST", "/v1/plan", filled("command: ", "["), YAML),
        ("POST", "/v1/plan", filled("command:\n", "- " * 63 + "1\n"), YAML),
        ("POST", "/v1/plan", filled("command: [", "[" * 60 + "]" * 60 + ",", "]"), YAML),
    ),
    "many keys": (("POST", "/v1/jobs", f"command: [x]\nenv:\n{KEYS}"[:MIB], YAML),),
    "long scalars": (
        ("POST", "/v1/jobs", filled("command: ", "x"), YAML),
        ("POST", "/v1/jobs", filled("command: [", "x" * 250_000 + ", ", "x]"), YAML),
        ("POST", "/v1/jobs", filled('{"command": ["', "\\ud83d\\ude00", '"]}'), JSON),
        ("POST", "/v1/jobs", filled("gpus: ", "1_"), YAML),
    ),
    "aliases": (
        ("POST", "/v1/jobs", ANCHORS, YAML),
        ("POST", "/v1/jobs", filled("command: [&a x,", "*a,", "x]"), YAML),
        ("POST", "/v1/jobs", filled("command: [", "&a x,", "x]"), YAML),
    ),
    "large json": (
        ("POST", "/v1/tokens", filled('{"name": ', "["), JSON),
        ("POST", "/v1/tokens", filled('{"name": [', "{},", "{}]}"), JSON),
        ("POST", "/v1/jobs", filled('{"command": [', "[],", "[]]}"), JSON),
    ),
    "too large": (
        ("POST", "/v1/jobs", TOO_LARGE, YAML),
        ("PUT", "/v1/teams", TOO_LARGE, YAML),
    ),
    "huge jobs": (
        ("POST", "/v1/plan", job(tasks=100_000, gpus=1, hold=False), JSON),
        ("POST", "/v1/jobs", job(tasks=100_000, gpus=1, hold=False), JSON),
        ("POST", "/v1/jobs?dry_run=1&allow_never=1", job(array="0-9999", gpus=1), JSON),
        ("POST", "/v1/jobs", job(array="0-9999", tasks=100_000), JSON),
        ("POST", "/v1/jobs", job(array="0-9999", gpus=1, hold=False), JSON),
    ),
    "long lists": (
        ("GET", "/v1/jobs?limit=1000", "", ""),
        ("GET", "/v1/jobs?limit=1000&name=nothing", "", ""),
        ("GET", "/v1/events?limit=1000", "", ""),
        ("GET", "/v1/audit?limit=1000", "", ""),
        ("GET", "/v1/jobs/1/explanation", "", ""),
        ("GET", "/v1/openapi.json", "", ""),
        ("GET", "/v1/teams", "", ""),
    ),
}


class Client:
    """Asks for one kind of thing until the time is over."""

    def __init__(self, port: int, token: str, kind: str) -> None:
        self.port = port
        self.kind = kind
        self.answers: Counter[str] = Counter()
        self._headers = {"Authorization": f"Bearer {token}"}

    def run(self, until: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        while time.monotonic() < until:
            for method, path, body, media in KINDS[self.kind]:
                if time.monotonic() >= until:
                    break
                try:
                    headers = {**self._headers, **({"Content-Type": media} if media else {})}
                    connection.request(method, path, body or None, headers)
                    response = connection.getresponse()
                    response.read()
                    self.answers[f"{self.kind}: {response.status}"] += 1
                except (OSError, http.client.HTTPException):
                    # A body that is too large is not read to its end: the connection is closed.
                    self.answers[f"{self.kind}: closed"] += 1
                    connection.close()
        connection.close()


class SlowClient(Client):
    """Holds many requests open, of whose bodies a byte comes now and then."""

    def run(self, until: float) -> None:
        held = list(self._connections())
        while time.monotonic() < until:
            for one in held:
                try:
                    one.send(b" ")
                except OSError:
                    self.answers["slow body: closed"] += 1
            time.sleep(0.5)
        for one in held:
            one.close()

    def _connections(self) -> Iterator[socket.socket]:
        lines = [
            "POST /v1/jobs HTTP/1.1",
            "Host: 127.0.0.1",
            f"Content-Type: {JSON}",
            "Content-Length: 900000",
            *(f"{name}: {value}" for name, value in self._headers.items()),
        ]
        for _ in range(SLOW_CONNECTIONS):
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            yield connection


def clients(port: int, tokens: list[str]) -> list[Client]:
    """One per kind, each of another user, and the other users hold slow bodies."""
    asking = [Client(port, token, kind) for token, kind in zip(tokens, KINDS, strict=False)]
    return [*asking, *(SlowClient(port, token, "slow body") for token in tokens[len(KINDS) :])]


def main() -> None:
    port, seconds = int(sys.argv[1]), float(sys.argv[2])
    tokens = sys.stdin.read().split()
    until = time.monotonic() + seconds
    started = clients(port, tokens)
    runs: list[Callable[[float], None]] = [client.run for client in started]
    threads = [threading.Thread(target=run, args=(until,), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 70)
    total: Counter[str] = Counter()
    for client in started:
        total += client.answers
    print(json.dumps(dict(sorted(total.items()))))


if __name__ == "__main__":
    main()
