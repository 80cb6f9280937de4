"""A real gpuyard under hostile clients, and how long others wait meanwhile: for the tests and for the benchmark.

Times are calibrated by the fixed loop, which is run before and after each round, while nobody attacks.
"""

from __future__ import annotations

import http.client
import json
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from benchmarks.calibration import REFERENCE_MS, calibration_loop, milliseconds
from gpuyard.sdk.client import Client
from gpuyard.wire.access import Grant, Role
from gpuyard.wire.rest import TokenRequest, UserChange
from tests.security.hostile_clients import USERS
from tests.yard import ROOT, Yard

PAUSE_S = 0.02
CALIBRATIONS = 5


class Round(NamedTuple):
    """What others waited while there was an attack, in calibrated milliseconds."""

    times: list[float]
    raw: list[float]
    answers: Counter[str]


def hostile_tokens(client: Client, count: int = USERS) -> list[str]:
    """Tokens of so many members of the first team, each a user of its own."""
    team = next(iter(client.teams())).name
    tokens = []
    for number in range(count):
        name = f"hostile-{number}"
        client.set_user(name, UserChange((Grant(Role.MEMBER, team),)))
        tokens.append(client.create_token(TokenRequest(user=name)).secret)
    return tokens


def calibration() -> float:
    """How long the fixed loop takes now; the fastest of a few, as others use the machine too."""
    return min(milliseconds(calibration_loop) for _ in range(CALIBRATIONS))


class Clock:
    """What to multiply times by that were measured while it was open; set at the end."""

    factor = 1.0


@contextmanager
def calibrated() -> Iterator[Clock]:
    clock = Clock()
    before = calibration()
    yield clock
    clock.factor = REFERENCE_MS / statistics.mean((before, calibration()))


def attacked(yard: Yard, tokens: list[str], seconds: float, path: str = "/v1/status") -> Round:
    """Ask for a path again and again while the clients attack."""
    with calibrated() as clock:
        raw, answers = _attacked(yard, tokens, seconds, path)
    return Round([one * clock.factor for one in raw], raw, answers)


def _attacked(yard: Yard, tokens: list[str], seconds: float, path: str) -> tuple[list[float], Counter[str]]:
    command = [sys.executable, "-m", "tests.security.hostile_clients", str(yard.port), str(seconds)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT, env=yard.environment) as attack:
        assert attack.stdin is not None
        assert attack.stdout is not None
        attack.stdin.write("\n".join(tokens))
        attack.stdin.close()
        time.sleep(1)
        raw = asked(yard, path, lambda: attack.poll() is None)
        return raw, Counter(json.loads(attack.stdout.read()))


def asked(yard: Yard, path: str, goes_on: Callable[[], bool]) -> list[float]:
    """Milliseconds per request of somebody who does nothing else; a refusal is an error."""
    headers = {"Authorization": f"Bearer {(yard.home / 'admin.token').read_text().strip()}"}
    connection = http.client.HTTPConnection("127.0.0.1", yard.port, timeout=120)
    times = []
    while goes_on():
        began = time.perf_counter()
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        body = response.read()
        times.append((time.perf_counter() - began) * 1000)
        assert response.status == 200, body
        time.sleep(PAUSE_S)
    connection.close()
    return times


def percentile(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)]
