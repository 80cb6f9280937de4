"""`gpuyard pool`: places for jobs on machines that another platform runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.listing import Look, listing_options, show_all
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpuyard.sdk.calls import Call
    from gpuyard.wire.pool import PoolRequest

OUTPUTS = ("text", "json", "yaml")


class JobType(click.ParamType[Any]):
    """TEAM/JOB."""

    name = "team/job"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        if isinstance(value, tuple):
            return value
        team, slash, job = value.partition("/")
        if not (team and slash and job):
            self.fail(f'"{value}" names no job; write TEAM/JOB', param, ctx)
        return team, job


JOB = JobType()
output_option = click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form.  [default: text]")


@click.group()
def pool() -> None:
    """Places for jobs on machines that another platform runs: the GpuResourceManager.

    Teams have budgets; whoever finds room may use it. A team within its budget gets its place back: jobs of teams
    over theirs are deleted, others are moved. What is to be done comes as a plan; the platform carries out its steps
    and confirms each. More: docs/gpu-resource-manager.md

    \b
    gpuyard pool machine set gpu-1 8
    gpuyard pool budget set vision 4
    gpuyard pool provision vision/train 2.5
    gpuyard pool plan confirm 1 1
    """


# ------------------------------------------------------------------------------------------------------------- machines


@pool.group()
def machine() -> None:
    """Machines of the pool.

    \b
    gpuyard pool machine set gpu-1 8
    gpuyard pool machine ls
    """


@machine.command("set")
@click.argument("name", metavar="MACHINE")
@click.argument("devices", type=click.IntRange(1))
@click.option("--type", "device_type", default="", metavar="TYPE", help="What its devices are.  [default: gpu]")
@connected
def set_machine(session: Session, name: str, devices: int, device_type: str) -> None:
    """Add a machine, or say how many devices it has; refused while a job holds one that would go.

    \b
    gpuyard pool machine set gpu-1 8
    gpuyard pool machine set gpu-2 4 --type a100
    """
    found = session.client.set_pool_machine(name, devices, device_type=device_type)
    click.echo(one_line(f"{found.name} {found.devices} x {found.device_type}"))


@machine.command("rm")
@click.argument("names", metavar="MACHINE...", nargs=-1, required=True)
@connected
def remove_machine(session: Session, names: tuple[str, ...]) -> None:
    """Take machines away that no job holds.

    \b
    gpuyard pool machine rm gpu-1
    """
    for name in names:
        session.client.remove_pool_machine(name)
        click.echo(one_line(f"{name} removed"))


@machine.command("ls")
@connected
@listing_options
def list_machines(session: Session, look: Look) -> None:
    """List the machines.

    \b
    gpuyard pool machine ls
    """
    from gpuyard.cli.pool_columns import MACHINES
    from gpuyard.sdk import calls

    show_all(session, calls.list_pool_machines(), MACHINES, look)


# -------------------------------------------------------------------------------------------------------------- budgets


@pool.group()
def budget() -> None:
    """What teams are owed of the pool. A team is known once it has a budget, be it 0.

    \b
    gpuyard pool budget set vision 4
    gpuyard pool budget ls
    """


@budget.command("set")
@click.argument("team")
@click.argument("amount")
@click.option("--type", "device_type", default="", metavar="TYPE", help="Of which devices.  [default: gpu]")
@connected
def set_budget(session: Session, team: str, amount: str, device_type: str) -> None:
    """Say what a team is owed. Lowering it stops nobody by itself.

    \b
    gpuyard pool budget set vision 4
    gpuyard pool budget set vision 2.5 --type a100
    """
    found = session.client.set_pool_budget(team, amount, device_type=device_type)
    click.echo(one_line(f"{found.team} {found.amount} {found.device_type}"))


@budget.command("rm")
@click.argument("teams", metavar="TEAM...", nargs=-1, required=True)
@connected
def remove_team(session: Session, teams: tuple[str, ...]) -> None:
    """Forget teams that have no jobs, with all their budgets.

    \b
    gpuyard pool budget rm vision
    """
    for team in teams:
        session.client.remove_pool_team(team)
        click.echo(one_line(f"{team} removed"))


@budget.command("ls")
@connected
@listing_options
def list_budgets(session: Session, look: Look) -> None:
    """List the budgets of the teams you see.

    \b
    gpuyard pool budget ls
    """
    from gpuyard.cli.pool_columns import BUDGETS
    from gpuyard.sdk import calls

    show_all(session, calls.list_pool_budgets(), BUDGETS, look)


# ----------------------------------------------------------------------------------------------------------------- jobs


def _request_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        output_option,
        click.option("--checkpointable", is_flag=True, help="May be moved although it has priority."),
        click.option("--priority", is_flag=True, help="Never deleted for another job."),
        click.option(
            "--type",
            "types",
            multiple=True,
            metavar="TYPE[=AMOUNT]",
            help="Of this type; repeated, in the order of preference.  [default: any]",
        ),
        click.argument("amount"),
        click.argument("job", type=JOB, metavar="TEAM/JOB"),
    ):
        command = option(command)
    return command


def _request(
    job: tuple[str, str], amount: str, types: tuple[str, ...], priority: bool, checkpointable: bool
) -> PoolRequest:
    from gpuyard.wire.pool import PoolAlternative, PoolRequest

    parted = [text.partition("=") for text in types]
    alternatives = tuple(PoolAlternative(other or amount, device_type) for device_type, _, other in parted)
    return PoolRequest(
        name=job[1],
        team=job[0],
        amount=None if alternatives else amount,
        alternatives=alternatives,
        priority=priority,
        checkpointable=checkpointable,
    )


def _answered(session: Session, call: Call[Any], output: str | None, lines: Callable[[Any], Iterable[str]]) -> None:
    """One object, for a person or a program."""
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk.answers import decoded_json

    form = session.output(output, OUTPUTS, "text")
    raw = session.client.send(call.verbatim())
    if form != "text":
        print_object(raw, form)
        return
    for line in lines(decoded_json(raw, call.operation.answer)):
        click.echo(one_line(line))


@pool.command()
@_request_options
@connected
def provision(session: Session, output: str | None, **asked: Any) -> None:  # noqa: ANN401
    """Find a place for a job: a plan of steps to carry out, in this order, and to confirm.

    AMOUNT is a number of devices, exactly: 2, 0.5, 2.5 (two and half of a third, on one machine). Refused (exit code
    7) if the team has no budget for it and nothing is free, or if no arrangement of the jobs makes room.

    \b
    gpuyard pool provision vision/train 2.5
    gpuyard pool provision vision/train 1 --type h100 --type a100=2
    gpuyard pool provision vision/serve 0.5 --priority --checkpointable -o json
    """
    from gpuyard.cli.pool_columns import plan_lines
    from gpuyard.sdk import calls

    _answered(session, calls.provision_pool_job(_request(**asked)), output, plan_lines)


@pool.command()
@_request_options
@connected
def quote(session: Session, output: str | None, **asked: Any) -> None:  # noqa: ANN401
    """Say what would come of it, whom it would cost, and what would make the job run. Nothing is booked.

    \b
    gpuyard pool quote vision/train 4
    """
    from gpuyard.cli.pool_columns import quote_lines
    from gpuyard.sdk import calls

    _answered(session, calls.quote_pool_job(_request(**asked)), output, quote_lines)


@pool.command()
@click.argument("jobs", type=JOB, metavar="TEAM/JOB...", nargs=-1, required=True)
@connected
def ended(session: Session, jobs: tuple[tuple[str, str], ...]) -> None:
    """Say that jobs have ended: what they held is free.

    \b
    gpuyard pool ended vision/train
    """
    for team, name in jobs:
        session.client.end_pool_job(team, name)
        click.echo(one_line(f"{team}/{name} ended"))


@pool.command()
@click.argument("job", type=JOB, metavar="TEAM/JOB")
@click.argument("setting", metavar="on|off", type=click.Choice(("on", "off")))
@connected
def priority(session: Session, job: tuple[str, str], setting: str) -> None:
    """Give a job priority, or take it: it is then never deleted for another one.

    \b
    gpuyard pool priority vision/serve on
    """
    session.client.mark_pool_job(*job, setting == "on")
    click.echo(one_line(f"{'/'.join(job)} priority {setting}"))


@pool.command()
@click.option("--team", default="", help="Of one team.")
@connected
@listing_options
def ls(session: Session, look: Look, team: str) -> None:
    """List the jobs: what they hold, and where they will be once all open plans are carried out.

    \b
    gpuyard pool ls
    gpuyard pool ls --team vision -o json
    """
    from gpuyard.cli.pool_columns import JOBS
    from gpuyard.sdk import calls

    show_all(session, calls.list_pool_jobs(team=team), JOBS, look)


# ---------------------------------------------------------------------------------------------------------------- plans


@pool.group()
def plan() -> None:
    """Plans: what is to be done for a job, and how far it has come.

    \b
    gpuyard pool plan ls
    gpuyard pool plan confirm 1 1
    """


@plan.command("ls")
@click.option("-a", "--all", "all_of_them", is_flag=True, help="Also those that are over, as far as they are kept.")
@connected
@listing_options
def list_plans(session: Session, look: Look, all_of_them: bool) -> None:
    """List plans, oldest first.

    \b
    gpuyard pool plan ls
    gpuyard pool plan ls --all
    """
    from gpuyard.cli.pool_columns import PLANS
    from gpuyard.sdk import calls

    show_all(session, calls.list_pool_plans(all=all_of_them), PLANS, look)


@plan.command()
@click.argument("id", metavar="PLAN")
@output_option
@connected
def show(session: Session, id: str, output: str | None) -> None:
    """Show one plan, step by step.

    \b
    gpuyard pool plan show 1
    """
    from gpuyard.cli.pool_columns import plan_lines
    from gpuyard.sdk import calls

    _answered(session, calls.get_pool_plan(id), output, plan_lines)


@plan.command()
@click.argument("id", metavar="PLAN")
@click.argument("step", type=click.IntRange(1))
@output_option
@connected
def confirm(session: Session, id: str, step: int, output: str | None) -> None:
    """Say that a step was carried out.

    \b
    gpuyard pool plan confirm 1 1
    """
    from gpuyard.cli.pool_columns import plan_lines
    from gpuyard.sdk import calls

    _answered(session, calls.confirm_pool_step(id, step), output, plan_lines)


@plan.command()
@click.argument("id", metavar="PLAN")
@click.argument("step", type=click.IntRange(1))
@click.option("--why", default="", help="What stood in the way.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@output_option
@connected
def fail(session: Session, id: str, step: int, why: str, yes: bool, output: str | None) -> None:
    """Say that a step cannot be carried out: what is not yet confirmed of the plan is rolled back.

    \b
    gpuyard pool plan fail 1 2 --why "the machine is off"
    """
    from gpuyard.cli.pool_columns import plan_lines
    from gpuyard.sdk import calls

    if not yes:
        ask(f"Roll back what is not yet confirmed of plan {id}, and of plans that are built on it?")
    _answered(session, calls.fail_pool_step(id, step, why), output, plan_lines)
