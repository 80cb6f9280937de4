"""`gpuyard execute`: start data jobs of VDK and look at their executions, with the flags of VDK's own command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.session import Session, connected

if TYPE_CHECKING:
    from gpuyard.wire.data_jobs import DataJobExecution

OUTPUTS = ("text", "json", "yaml")
OPERATIONS = ("start", "list", "show", "cancel", "logs")


class ArgumentsType(click.ParamType[Any]):
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401
        import msgspec

        if isinstance(value, dict):
            return value
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except msgspec.DecodeError as error:
            self.fail(f"""{error}; write an object: '{{"key": "value"}}'""", param, ctx)


def _operation(command: Any) -> Any:  # noqa: ANN401 - as click declares it
    helps = {
        "start": "Start the job now, or be told why it cannot; nothing is queued.",
        "list": "List its executions, newest first.",
        "show": "Show one execution.",
        "cancel": "End an execution, politely.",
        "logs": "Show what an execution has written.",
    }
    for name in reversed(OPERATIONS):
        command = click.option(f"--{name}", "operations", flag_value=name, multiple=True, help=helps[name])(command)
    return command


@click.command(epilog="Data jobs are made and deployed with VDK's own command line. More: docs/vdk.md")
@_operation
@click.option("--wait", is_flag=True, help="Wait until the execution is over, and end with its exit code.")
@click.option("-j", "-n", "--job", "--name", "job", required=True, metavar="JOB", help="The data job.")
@click.option("-t", "--team", default="", help="Its team.  [default: of the context, or the only one of yours]")
@click.option("-i", "--execution-id", "id", default="", metavar="ID", help="Which execution.  [default: the newest]")
@click.option("--arguments", type=ArgumentsType(), metavar="JSON", help="With --start: given to every step of the job.")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form.  [default: text]")
@connected
def execute(
    session: Session,
    operations: tuple[str, ...],
    wait: bool,
    job: str,
    team: str,
    id: str,
    arguments: dict[str, Any] | None,
    output: str | None,
) -> None:
    """Start data jobs of VDK, and look at their executions.

    A job that cannot have its GPUs now is refused: the team is over its budget and nothing is free, or no arrangement
    of what runs makes room. An execution is a gpuyard job of the same number: logs, explain, cancel know it.

    \b
    gpuyard execute --start -j myJob -t myTeam
    gpuyard execute --start -j train-model -t vision --arguments '{"epochs": 3}' --wait
    gpuyard execute --list -j train-model -t vision -o json
    gpuyard execute --logs -j train-model -t vision
    """
    operation = _one_of(operations, wait)
    if arguments is not None and operation != "start":
        raise click.UsageError("--arguments is for --start.")
    form = session.output(output, OUTPUTS, "text")
    run = _Run(session, team or _own_team(session), job, form)
    match operation:
        case "start":
            id = run.start(arguments)
        case "list":
            run.list()
        case "show":
            run.show(id)
        case "cancel":
            run.cancel(id)
        case "logs":
            run.logs(id)
    if wait:
        run.wait(id)


def _one_of(operations: tuple[str, ...], wait: bool) -> str:
    if len(set(operations)) > 1:
        raise click.UsageError(f"one thing at a time: --{' or --'.join(dict.fromkeys(operations))}.")
    if not operations and not wait:
        raise click.UsageError(f"say what to do: --{', --'.join(OPERATIONS)} or --wait.")
    operation = operations[0] if operations else ""
    if wait and operation not in ("start", ""):
        raise click.UsageError(f"--wait goes with --start, or alone; not with --{operation}.")
    return operation


def _own_team(session: Session) -> str:
    team = session.settings.get("team")
    if team:
        return team
    teams = session.client.whoami().teams
    if len(teams) != 1:
        raise click.UsageError(f"say of which team the job is: -t TEAM; yours are {', '.join(teams[:10]) or 'none'}.")
    return teams[0]


class _Run:
    """What is done about one data job."""

    def __init__(self, session: Session, team: str, job: str, form: str) -> None:
        self._client = session.client
        self._team = team
        self._job = job
        self._form = form

    def start(self, arguments: dict[str, Any] | None) -> str:
        from gpuyard.sdk import executions

        started = self._client.send(executions.start(self._team, self._job, arguments))
        self._print(started, f"execution {started.id} of {started.job_name} started: gpuyard logs -f {started.id}")
        return started.id

    def list(self) -> None:
        import msgspec

        from gpuyard.cli.execution_columns import EXECUTIONS
        from gpuyard.cli.listing import Look, show
        from gpuyard.sdk import executions

        found = self._client.send(executions.list_all(self._team, self._job))
        show(
            [msgspec.json.encode(one) for one in found],
            EXECUTIONS,
            Look("table" if self._form == "text" else self._form),
        )

    def show(self, id: str) -> None:
        from gpuyard.cli.execution_columns import described

        found = self._execution(id)
        self._print(found, "\n".join(described(found)))

    def cancel(self, id: str) -> None:
        from gpuyard.sdk import executions

        known = id or self._execution("").id
        self._client.send(executions.cancel(self._team, self._job, known))
        self.show(known)

    def logs(self, id: str) -> None:
        from gpuyard.sdk import executions

        known = id or self._execution("").id
        found = self._client.send(executions.logs(self._team, self._job, known))
        self._print(found, found.logs.removesuffix("\n"))

    def wait(self, id: str) -> None:
        from gpuyard.cli.follow import end_with, stay

        end_with(stay(self._client, id or self._execution("").id, output=False))

    def _execution(self, id: str) -> DataJobExecution:
        """One by its id, else the newest."""
        from gpuyard.errors import NotFoundError
        from gpuyard.sdk import executions

        if id:
            return self._client.send(executions.get(self._team, self._job, id))
        found = self._client.send(executions.list_all(self._team, self._job))
        if not found:
            raise NotFoundError(f"data job {self._job} of team {self._team} has no execution", fix="start it: --start")
        return found[0]

    def _print(self, value: object, text: str) -> None:
        from gpuyard.cli.output import print_data

        if self._form != "text":
            print_data(value, self._form)
        elif text:
            click.echo(text)
