"""`gpuyard explain`: why one job is where it is, or is not, and what would let it start."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuyard.cli.inputs import InputFile
from gpuyard.cli.output import FORMATS, form_option, print_data
from gpuyard.cli.session import Session, connected_anywhere, namespace_option

if TYPE_CHECKING:
    from gpuyard.model.snapshot import Snapshot

MAX_JOBS_NAMED = 10


@click.command(epilog="How to read the answer: docs/explain.md. To try a way out: gpuyard what-if")
@click.argument("job", metavar="JOB")
@click.option("--cluster", "cluster_path", type=InputFile(), help="Answer from a cluster file instead.")
@namespace_option
@form_option
@connected_anywhere
def explain(session: Session, job: str, cluster_path: Path | None, output: str | None) -> None:
    """Say everything about one job: what blocks it, its turn, and the cheapest ways out.

    Every way out has been tried: after it, the next plan does give the job a place. Of a job that runs it says
    where, since when and why, and whether it must give way and to whom. Ends with 0 if the job runs or can, 10 if it
    waits, 11 if waiting alone cannot help; from a cluster file always with 0. A file named - is read from a pipe.
    With a Kubernetes context a JOB is a pod or what its pods belong to: POD, NAMESPACE/POD, KIND/NAME.

    \b
    gpuyard explain 17
    gpuyard explain train -o json
    gpuyard explain train-0 --kubernetes -n vision
    gpuyard explain llm --cluster cluster.yaml
    gpuyard demo --yaml | gpuyard explain ads-sweep --cluster -
    """
    form = session.output(output, FORMATS, "text")
    if cluster_path is not None:
        _answer_from_file(job, cluster_path, form)
    elif session.on_kubernetes:
        from gpuyard.cli.kube_questions import explain_pod

        explain_pod(session, job, form)
    else:
        _ask_server(session, job, form)


def _ask_server(session: Session, job: str, output: str) -> None:
    from gpuyard.cli.job_ids import one_job
    from gpuyard.cli.listing import print_object
    from gpuyard.sdk import calls
    from gpuyard.sdk.answers import decoded_json
    from gpuyard.wire.rest import ExplanationObject

    raw = session.client.send(calls.explain_job(one_job(session.client, job)).verbatim())
    answer: ExplanationObject = decoded_json(raw, ExplanationObject)
    if output != "text":
        print_object(raw, output)
    else:
        from gpuyard.cli.show import console
        from gpuyard.cli.show_answers import show_explanation, show_section

        show_explanation(console(), answer.explanation, int(answer.at.timestamp() * 1000))
        show_section(console(), "Unhealthy nodes", answer.unhealthy_nodes)
    click.get_current_context().exit(answer.exit_code)


def _answer_from_file(job: str, cluster_path: Path, output: str) -> None:
    from gpuyard.files.cluster import read_cluster
    from gpuyard.scheduler.explain import explain as explain_job

    cluster = read_cluster(cluster_path)
    _refuse_unknown(job, cluster.snapshot, cluster_path)
    explanation = explain_job(cluster.snapshot, job, cluster.policy)
    if output != "text":
        print_data(explanation, output)
        return
    from gpuyard.cli.show import console
    from gpuyard.cli.show_answers import show_explanation

    show_explanation(console(), explanation, cluster.snapshot.now_ms)


def _refuse_unknown(job: str, snapshot: Snapshot, path: Path) -> None:
    from gpuyard.errors import InputError, Where
    from gpuyard.files.suggest import did_you_mean

    names = [known.id for known in snapshot.jobs]
    if job in names:
        return
    shown = ", ".join(names[:MAX_JOBS_NAMED]) + (", ..." if len(names) > MAX_JOBS_NAMED else "")
    fix = f"jobs in it: {shown}" if names else "it lists no job, neither running nor pending"
    raise InputError(f'there is no job "{job}"{did_you_mean(job, names)}', where=Where(str(path)), fix=fix)
