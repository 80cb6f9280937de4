"""`gpuyard agent`: this machine's part, in this terminal or under a service manager."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(epilog="A token to join with is made by: gpuyard node token")
@click.option("--join", "invitation", default="", metavar="TOKEN@URL", help="Join this manager first; once is enough.")
@click.option("--home", type=click.Path(path_type=Path), help="Of all its state; agent/ in GPUYARD_HOME unless given.")
@click.option("--manager", default="", metavar="HOST:PORT", help="Where it listens for agents; as joining has told.")
@click.option("--node", default="", metavar="NAME", help="What this machine is called; its host name unless given.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the machine; may be repeated.")
@click.option("--address", default="", help="Where other machines reach the tasks of this one.")
@click.option("--fake-gpus", type=click.IntRange(0, 62), help="So many fake GPUs, even beside real ones; 0: never.")
@click.option("--product", default="", help="What the fake ones are: A100-40, H100, ...")
@click.option("--isolation", type=click.Choice(["none", "users"]), help="What keeps jobs apart; users as root.")
@click.option("--cgroup", default="", metavar="PATH", help="Where it may make cgroups; none: nowhere.")
def agent(
    invitation: str,
    home: Path | None,
    manager: str,
    node: str,
    labels: tuple[str, ...],
    address: str,
    fake_gpus: int | None,
    product: str,
    isolation: str | None,
    cgroup: str,
) -> None:
    """Run this machine's part: its GPUs, its tasks, and the stream to the manager.

    `gpuyard up` starts one for its own machine; on every other machine this command is all there is. Ctrl-C and
    SIGTERM end it; what runs goes on for as long as its lease and is found again by the next.

    \b
    gpuyard agent --join gyj_...@https://manager:7400       the first time: joins, then runs
    gpuyard agent                                           from then on
    """
    from gpuyard.agent.daemon import run, say
    from gpuyard.agent.join import enter
    from gpuyard.agent.settings import DEFAULT_FAKE_PRODUCT, Settings
    from gpuyard.platform.home import gpuyard_home
    from gpuyard.wire.agents import Isolation

    settings = Settings(
        home=(home or gpuyard_home() / "agent").absolute(),
        manager=manager,
        node=node,
        labels=_labels(labels),
        address=address,
        fake_gpus=fake_gpus,
        fake_product=product or DEFAULT_FAKE_PRODUCT,
        isolation=Isolation(isolation) if isolation else None,
        cgroup=cgroup,
    )
    if invitation:
        say(enter(settings, invitation))
    run(settings)


def _labels(given: tuple[str, ...]) -> dict[str, str]:
    from gpuyard.wire.agent_limits import facts_problem
    from gpuyard.wire.agents import MachineFacts

    labels = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise click.BadParameter(f'"{text}" is not NAME=VALUE', param_hint="--label")
        labels[name] = value
    problem = facts_problem(MachineFacts(labels=labels))
    if problem:
        raise click.BadParameter(problem, param_hint="--label")
    return labels
