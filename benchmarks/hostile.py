"""`make bench-hostile`: how long others wait while ten members loop the most expensive requests there are.

The real thing: `gpuyard up` as processes on this machine, hostile clients as another. Times are calibrated by the fixed
loop, which is run before and after each round, while nobody attacks.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.report import Row, report
from gpuyard.sdk.bodies import JobRequest
from tests.security.under_attack import attacked, hostile_tokens, percentile
from tests.yard import Yard, open_folder, running_yard

OUTPUT: Final = Path("build/bench/hostile.json")
ROUNDS: Final = 5
SECONDS: Final = 30.0
P99_MS: Final = 250.0
ASKED: Final = {"status": "/v1/status", "one job": "/v1/jobs/1", "who am I": "/v1/whoami"}
"""What somebody asks for meanwhile."""


def rows(rounds: int, seconds: float) -> Iterator[Row]:
    with open_folder() as folder, running_yard(folder) as yard, yard.ready() as client:
        client.submit_job(JobRequest(command=["true"], hold=True))
        tokens = hostile_tokens(client)
        for name, path in ASKED.items():
            yield from rows_of(yard, tokens, name, path, rounds, seconds)
        begun = (yard.home / "agent" / "agent.log").read_text(errors="replace").count("session with")
        yield Row("sessions that the agent has begun", "", begun, begun, 1)


def rows_of(yard: Yard, tokens: list[str], name: str, path: str, rounds: int, seconds: float) -> Iterator[Row]:
    """The times of one question over all rounds, and whether the attack made anything break."""
    times: list[float] = []
    raw: list[float] = []
    answers: Counter[str] = Counter()
    for _ in range(rounds):
        found = attacked(yard, tokens, seconds, path)
        times += found.times
        raw += found.raw
        answers += found.answers
    for percent in (50, 99):
        measured, calibrated = percentile(raw, percent), percentile(times, percent)
        yield Row(f"{name}, p{percent} of {len(raw)}", "ms", measured, calibrated, P99_MS)
    broken = sum(count for answer, count in answers.items() if answer.partition(": ")[2].startswith("5"))
    yield Row(f"{name}: hostile requests answered with 5xx, of {answers.total()}", "", broken, broken, 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    return report(rows(options.rounds, options.seconds), options.output)


if __name__ == "__main__":
    sys.exit(main())
