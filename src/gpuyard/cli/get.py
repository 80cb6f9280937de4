"""`gpuyard get` and `gpuyard describe`: one job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from gpuyard.cli.output import FORMATS, form_option
from gpuyard.cli.session import Session, connected

if TYPE_CHECKING:
    from gpuyard.wire.rest import EventObject, JobDetail

OUTPUTS = ("text", "json", "yaml", "jsonl", "name")
MAX_EVENTS = 50
RECLAIMABLE = "reclaimable: whoever waits in its team may have its GPUs, other teams what is borrowed of them"


@click.command()
@click.argument("job", metavar="JOB")
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
@connected
def get(session: Session, job: str, output: str | None) -> None:
    """Show one job.

    \b
    gpuyard get 17
    gpuyard get train -o yaml
    gpuyard get 17 -o json | jq .state
    """
    from gpuyard.cli.job_ids import one_job
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import JobDetail

    form = session.output(output, OUTPUTS, "text")
    raw = session.client.send(calls.get_job(one_job(session.client, job)).verbatim())
    detail: JobDetail = decoded_json(raw, JobDetail)
    if form == "name":
        click.echo(detail.id)
    elif form == "text":
        _print_lines(_facts(detail))
    else:
        print_object(raw, form)


@click.command()
@click.argument("job", metavar="JOB")
@click.option(
    "--events", "count", type=click.IntRange(0, 1000), default=MAX_EVENTS, show_default=True, help="How many."
)
@form_option
@connected
def describe(session: Session, job: str, count: int, output: str | None) -> None:
    """Show one job with its tasks, and everything that happened to it and why, oldest first.

    \b
    gpuyard describe 17
    gpuyard describe train --events 500
    gpuyard describe 17 -o json | jq '.events[].text'
    """
    from itertools import islice

    from gpuyard.cli.job_ids import one_job
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import EventObject, JobDetail

    form = session.output(output, FORMATS, "text")
    id = one_job(session.client, job)
    raw = session.client.send(calls.get_job(id).verbatim())
    listed = calls.list_events(object=f"job/{id}", limit=max(count, 1))
    newest = list(islice(session.client.items(listed.verbatim()), count))
    if form != "text":
        print_object(b'{"job":%b,"events":[%b]}' % (bytes(raw), b",".join(map(bytes, reversed(newest)))), form)
        return
    detail: JobDetail = decoded_json(raw, JobDetail)
    _print_lines(_facts(detail))
    _print_tasks(detail)
    _print_events([decoded_json(event, EventObject) for event in newest], cut=len(newest) == count)


def _print_lines(facts: Iterator[tuple[str, str]]) -> None:
    from gpuyard.cli.listing import lines_of

    for line in lines_of(facts):
        click.echo(line)


def _facts(job: JobDetail) -> Iterator[tuple[str, str]]:
    from gpuyard.cli.times import exact, now, since, span, until

    at = now()
    yield "Job", f"{job.id} ({job.name})"
    yield "Team", f"{job.team}, user {job.user}"
    yield "State", job.state + (f", exit code {job.exit_code}" if job.exit_code is not None else "")
    yield "Why", "; ".join(why.text for why in job.why)
    yield "Starts", _start(until(job.starts_at, at), until(job.starts_by, at))
    yield "Asks for", f"{job.gpus} GPU{'' if job.gpus == '1' else 's'} in all, {_asked_tasks(job)}"
    yield "Runs", f"{_tasks(job.running_tasks, job.running_tasks)} on {', '.join(job.nodes)}" if job.nodes else ""
    yield "Priority", f"{job.priority}, {'may have to give way' if job.preemptible else 'never has to give way'}"
    yield "Submitted", f"{exact(job.submitted_at)} ({since(job.submitted_at, at)} ago)"
    yield "Started", exact(job.started_at)
    yield "Ended", exact(job.ended_at)
    yield "Run limit", span(job.run_limit_ms / 1000) if job.run_limit_ms else ""
    yield "Restarts", str(job.restarts) if job.restarts else ""
    yield "Retries", str(job.retries) if job.retries else ""
    yield "Schedule", f"{job.schedule}, planned for {exact(job.planned_at)}" if job.schedule else ""
    yield "Array", f"{job.array}, element {job.array_index}" if job.array else ""
    yield "After", ", ".join(job.after)
    yield "After success of", ", ".join(job.afterok)
    yield "Labels", ", ".join(f"{key}={value}" for key, value in job.labels.items())
    yield (
        "Idle",
        f"since {exact(job.idle_since)}{f', {RECLAIMABLE}' if job.reclaimable else ''}" if (job.idle_since) else "",
    )
    yield "Command", " ".join(_quoted(word) for word in job.command or ())
    yield "Variables", ", ".join(f"{key}={value}" for key, value in (job.env or {}).items())
    yield "Folder", job.workdir or ""
    yield "Checkpoint", " ".join(job.checkpoint or ())
    yield "If its node is lost", job.on_node_lost
    yield "Revision", str(job.revision)


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def _start(likely: str, surely: str) -> str:
    if not likely:
        return ""
    return f"{likely}, almost surely {'by then' if not surely or surely == likely else surely}"


def _tasks(least: int, most: int) -> str:
    if least < most:
        return f"{least} to {most} tasks"
    return f"{most} task{'s' if most != 1 else ''}"


def _asked_tasks(job: JobDetail) -> str:
    """`4 tasks`, `2 to 4 tasks`, `8 tasks: 4 on each of 2 nodes`."""
    tasks, each = _tasks(job.min_tasks, job.tasks), job.tasks_per_node
    if not each:
        return tasks
    least, most = job.min_tasks // each, job.tasks // each
    nodes = f"{least} to {most} nodes" if least < most else f"{most} node{'s' if most != 1 else ''}"
    return f"{tasks}: {each} on each of {nodes}"


def _print_tasks(job: JobDetail) -> None:
    from gpuyard.cli.listing import table_lines
    from gpuyard.cli.terminal import PIPED_WIDTH, one_line
    from gpuyard.cli.times import exact

    rows = [["TASK", "PHASE", "ATTEMPT", "NODE", "GPU", "STARTED", "ENDED", "EXIT", "USE", "MESSAGE"]]
    for task in job.task_list:
        exit_code = "" if task.exit_code is None else str(task.exit_code)
        use = "" if task.gpu_percent is None else f"{task.gpu_percent} %"
        devices = ",".join(map(str, task.devices))
        times = (exact(task.started_at), exact(task.ended_at))
        message = one_line(task.message or task.ending)
        rows.append(
            [str(task.task), task.phase, str(task.attempt), task.node, devices, *times, exit_code, use, message]
        )
    click.echo()
    for line in table_lines(rows, PIPED_WIDTH):
        click.echo(line)


def _print_events(events: list[EventObject], *, cut: bool) -> None:
    from gpuyard.cli.terminal import one_line
    from gpuyard.cli.times import exact

    click.echo()
    if cut and events:
        click.echo("earlier events are left out: --events 1000")
    for event in reversed(events):
        click.echo(f"{exact(event.at)}  {one_line(event.text)}")
