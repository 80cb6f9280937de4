"""`python -m gpuyard.agent --home DIR`: the agent without the rest of gpuyard's commands."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from gpuyard.agent import daemon
from gpuyard.agent.settings import DEFAULT_FAKE_PRODUCT, Settings
from gpuyard.errors import GpuyardError
from gpuyard.wire.agents import Isolation


def main(arguments: list[str]) -> int:
    given = _parser().parse_args(arguments)
    settings = Settings(
        home=given.home,
        manager=given.manager,
        node=given.node,
        labels=dict(given.label),
        address=given.address,
        fake_gpus=given.fake_gpus,
        fake_product=given.fake_product,
        isolation=Isolation(given.isolation) if given.isolation else None,
        cgroup=given.cgroup,
    )
    if given.join:
        try:
            enter(settings, given.join)
        except GpuyardError as error:
            print(f"error: {error}", file=sys.stderr)
            return daemon.FAILED
    return daemon.main(settings)


def enter(settings: Settings, invitation: str) -> None:
    """Join first, and say what came of it."""
    from gpuyard.agent import join  # Its libraries take a while to load.

    daemon.say(join.enter(settings, invitation))


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f'"{text}" is not NAME=VALUE')
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gpuyard.agent", description="The part of gpuyard on each machine.")
    parser.add_argument("--home", type=Path, required=True, help="the folder of all its state")
    parser.add_argument("--join", default="", metavar="TOKEN@URL", help="join a manager first")
    parser.add_argument("--manager", default="", metavar="HOST:PORT", help="where it listens for agents")
    parser.add_argument("--node", default="", help="the name of this machine")
    parser.add_argument("--label", type=_label, action="append", default=[], metavar="NAME=VALUE", help="a label")
    parser.add_argument("--address", default="", help="where other machines reach the tasks of this one")
    parser.add_argument("--fake-gpus", type=int, metavar="COUNT", help="fake GPUs, also beside real ones; 0: never")
    parser.add_argument("--fake-product", default=DEFAULT_FAKE_PRODUCT, help="what they look like")
    parser.add_argument("--isolation", choices=[kind.value for kind in Isolation], help="what keeps jobs apart")
    parser.add_argument("--cgroup", default="", metavar="PATH", help="where it may make cgroups; none: nowhere")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
