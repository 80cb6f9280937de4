"""`gpuyard cancel`, `hold`, `release`, `suspend`, `resume`, `requeue` and `scale`: what can be done to jobs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.flags import BOUNDS, labels_of
from gpuyard.cli.session import Session, connected
from gpuyard.cli.terminal import ask, one_line, talk

if TYPE_CHECKING:
    from gpuyard.sdk.calls import Call

OUTPUTS = ("text", "json", "yaml", "jsonl", "name")
MAX_LISTED = 10


def _verb(name: str, text: str) -> click.Command:
    """A command that does one thing to all jobs it is given."""

    @click.argument("words", metavar="JOB...", nargs=-1)
    @click.option(
        "-l", "--label", "labels", multiple=True, metavar="K=V", help="All that are not over with these labels."
    )
    @click.option("-t", "--team", default="", help="All of a team that are not over.")
    @click.option("-u", "--user", default="", help="All of a user that are not over.")
    @click.option("--if-revision", type=click.IntRange(1), help="Only if the job has not changed since then.")
    @click.option("--dry-run", is_flag=True, help="Only say what would be done.")
    @click.option("-y", "--yes", is_flag=True, help="Do not ask.")
    @click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
    @connected
    def steer(
        session: Session,
        words: tuple[str, ...],
        labels: tuple[str, ...],
        team: str,
        user: str,
        if_revision: int | None,
        dry_run: bool,
        yes: bool,
        output: str | None,
    ) -> None:
        from gpuyard.cli.job_ids import several_jobs
        from gpuyard.sdk import calls

        ids = several_jobs(session.client, words, labels_of(labels), team, user)
        if if_revision is not None and len(ids) != 1:
            raise click.UsageError(f"--if-revision is about one job, and these are {len(ids)}.")
        named = set(ids) <= set(words)
        if len(ids) > 1 and not named and not yes and not dry_run:
            ask(f"{name} {_listed(ids)}?")
        _each(
            session,
            ids,
            lambda id: calls.steer_job(name, id, if_revision=if_revision),
            verb=name,
            dry_run=dry_run,
            output=output,
        )

    examples = f"""
    \b
    gpuyard {name} 17
    gpuyard {name} 12-20 train --yes
    gpuyard {name} -l sweep=7 --dry-run
    """
    steer.__doc__ = f"{text}\n\n    Jobs are ids, arrays, names, ranges of ids, or selected by labels.\n{examples}"
    return click.command(name)(steer)


def _listed(ids: list[str]) -> str:
    shown = ", ".join(ids[:MAX_LISTED])
    return f"{len(ids)} jobs ({shown}{', ...' if len(ids) > MAX_LISTED else ''})"


def _each(
    session: Session,
    ids: list[str],
    call: Callable[[str], Call[Any]],
    *,
    verb: str,
    dry_run: bool,
    output: str | None,
) -> None:
    """One after the other; what fails is told and does not stop the rest, and the first failure is the exit code.

    An id may be that of an array: then it is done to all its elements that are not over.
    """
    from gpuyard.cli.exit_codes import code_of
    from gpuyard.cli.job_ids import elements
    from gpuyard.errors import ClientError, NotFoundError, UnreachableError
    from gpuyard.sdk import calls

    form = session.output(output, OUTPUTS, "text")
    first_failure = 0
    done: list[bytes] = []
    left = deque(ids)
    try:
        while left:
            id = left.popleft()
            try:
                done.append(session.client.send((calls.get_job(id) if dry_run else call(id)).verbatim()))
            except UnreachableError:
                raise
            except ClientError as error:
                found = elements(session.client, id) if isinstance(error, NotFoundError) else []
                left.extendleft(reversed(found))
                if not found:
                    talk(f"error: {_about(id, str(error))}")
                    first_failure = first_failure or code_of(error)
    finally:
        # What was done is told, also where the rest could not be.
        _print(done, form, f"would {verb} {{id}}, which is {{state}}" if dry_run else "{id} ({name}) {state}")
    if first_failure:
        click.get_current_context().exit(first_failure)


def _about(id: str, said: str) -> str:
    """What is said of one of many, with its id unless it begins with it."""
    return said if said.startswith(f"job {id} ") else f"job {id}: {said}"


def _print(raws: list[bytes], form: str, sentence: str) -> None:
    from gpuyard.cli.listing import print_object, print_verbatim
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import JobObject

    if form in ("json", "yaml") and len(raws) == 1:
        print_object(raws[0], form)
    elif form in ("json", "yaml", "jsonl"):
        print_verbatim(raws, form)
    else:
        for raw in raws:
            job = decoded_json(raw, JobObject)
            said = sentence.format(id=job.id, name=job.name, state=job.state)
            click.echo(job.id if form == "name" else one_line(said))


cancel = _verb("cancel", "End jobs for good. One that runs gets a notice and its grace first.")
hold = _verb("hold", "Keep jobs from starting until they are released; one that runs is stopped politely.")
release = _verb("release", "Take the hold off jobs, so that they wait for their turn.")
suspend = _verb("suspend", "Stop jobs politely and keep them from starting until they are resumed.")
resume = _verb("resume", "Let suspended jobs wait for their turn again.")
requeue = _verb("requeue", "Stop running jobs politely and let them wait for their turn again.")


@click.command()
@click.argument("job", metavar="JOB")
@click.argument("tasks", metavar="TASKS | MIN-MAX")
@click.option("--if-revision", type=click.IntRange(1), help="Only if the job has not changed since then.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.", expose_value=False)
@click.option("-o", "--output", type=click.Choice(OUTPUTS), help="The form of the answer.  [default: text]")
@connected
def scale(session: Session, job: str, tasks: str, if_revision: int | None, dry_run: bool, output: str | None) -> None:
    """Give an elastic job other bounds for its tasks: the most, or the least and the most.

    It grows as soon as there is room. Tasks that run are not taken away: to shrink it below those, suspend it, scale
    it, and resume it.

    \b
    gpuyard scale 17 8
    gpuyard scale train 2-16
    """
    from gpuyard.cli.job_ids import one_job
    from gpuyard.sdk import calls
    from gpuyard.wire.rest import Scale

    if tasks.isdecimal() and int(tasks):
        bounds = Scale(int(tasks))
    else:
        least, most = BOUNDS.convert(tasks, None, None)
        bounds = Scale(most, least)
    _each(
        session,
        [one_job(session.client, job)],
        lambda id: calls.scale_job(id, bounds, if_revision=if_revision),
        verb=f"scale to {tasks} tasks",
        dry_run=dry_run,
        output=output,
    )
