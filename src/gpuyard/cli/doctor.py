"""`gpuyard doctor`: what is in order, what is not, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import click

from gpuyard.cli.exit_codes import FAILURE
from gpuyard.cli.output import FORMATS, form_option, print_data
from gpuyard.cli.session import Session, connected_anywhere, namespace_option
from gpuyard.cli.terminal import in_colour, one_line
from gpuyard.model.findings import FAIL, OK, WARN, Finding

if TYPE_CHECKING:
    from gpuyard.wire.rest import DatabaseHealth, NodeObject, Status

_COLOURS: Final = {OK: "green", WARN: "yellow", FAIL: "red"}
LOW_DISK_PERCENT: Final = 10
EMPTY_DISK_PERCENT: Final = 2
SLOW_CYCLE_MS: Final = 1_000
MAX_NAMED: Final = 5


@click.command(epilog="Ends with 1 if anything fails. -o json is for programs.")
@click.option("--pod", default="", metavar="POD", help="Kubernetes: look at this pod, not at all that wait.")
@namespace_option
@form_option
@connected_anywhere
def doctor(session: Session, pod: str, output: str | None) -> None:
    """Check the server, the token, versions, machines, teams, GPUs, database, disk and isolation.

    With a Kubernetes context: the way to it, your rights, its kinds, scheduler, nodes, GPUs and queues; and of every
    pod of the namespace that waits its namespace, queue, schedulerName, quota, nodes, and for gangs all of it at once.

    \b
    gpuyard doctor
    gpuyard doctor -o json
    gpuyard doctor --kubernetes -n vision
    gpuyard doctor --kubernetes -n vision --pod train-0
    """
    form = _form(session, output)
    findings = list(_examined(session, pod))
    if form == "text":
        _print_all(findings)
    else:
        print_data([finding._asdict() for finding in findings], form)
    if any(finding.verdict == FAIL for finding in findings):
        click.get_current_context().exit(FAILURE)


def _examined(session: Session, pod: str) -> Iterator[Finding]:
    """Settings that cannot be read are a finding, too."""
    from gpuyard.errors import GpuyardError

    try:
        on_kubernetes = session.on_kubernetes
    except GpuyardError:
        on_kubernetes = False
    if not on_kubernetes:
        if pod:
            raise click.UsageError("--pod is for a Kubernetes cluster: add --kubernetes, or a context of one.")
        yield from _findings(session)
        return
    from gpuyard.cli.kube_questions import target_of
    from gpuyard.kube.doctor import examine

    yield from examine(target_of(session), pod)


def _form(session: Session, output: str | None) -> str:
    """Settings that cannot be read are a finding, and no reason not to answer."""
    from gpuyard.errors import GpuyardError

    try:
        return session.output(output, FORMATS, "text")
    except GpuyardError:
        return "text"


def _print_all(findings: list[Finding]) -> None:
    subject = ""
    for finding in findings:
        if finding.subject != subject:
            subject = finding.subject
            click.echo()
            if subject:
                click.echo(click.style(one_line(subject), bold=True) if in_colour() else one_line(subject))
        _print(finding)


def _print(finding: Finding) -> None:
    verdict = f"{finding.verdict:<4}"
    shown = click.style(verdict, fg=_COLOURS[finding.verdict]) if in_colour() else verdict
    click.echo(f"{shown}  {finding.about:<10} {one_line(finding.what)}", color=in_colour())
    if finding.fix:
        click.echo(f"{'':<17} {one_line(finding.fix)}")


def _findings(session: Session) -> Iterator[Finding]:
    """In the order in which one thing needs the other; what needs a failed one is not looked at."""
    from gpuyard.errors import GpuyardError

    checks: tuple[tuple[str, Callable[[Session], Iterator[Finding]]], ...] = (
        ("settings", _settings),
        ("server", _server),
        ("token", _token),
        ("cluster", _cluster),
        ("nodes", _nodes),
        ("teams", _teams),
    )
    for about, check in checks:
        try:
            yield from check(session)
        except GpuyardError as error:
            first, _, fix = str(error).partition("\n")
            yield Finding(FAIL, about, first, fix.strip())
            break
    yield from _disk()


def _settings(session: Session) -> Iterator[Finding]:
    settings = session.settings
    url = settings.url
    yield Finding(OK, "settings", f"the server is {url} (said by {settings.values['url'].origin})")
    yield from _token_file(session)


def _token_file(session: Session) -> Iterator[Finding]:
    from pathlib import Path

    name = session.settings.get("token_file")
    try:
        mode = Path(name).stat().st_mode & 0o777 if name else 0
    except OSError:
        return
    if mode & 0o077:
        yield Finding(WARN, "token", f"others may read {name} (mode {mode:04o})", f"chmod 600 {name}")


def _server(session: Session) -> Iterator[Finding]:
    from gpuyard import __version__

    told = session.client.version()
    session.client.readyz()
    if told.version == __version__:
        yield Finding(OK, "server", f"it answers and is ready; version {told.version}, the same as this one")
    else:
        what = f"it answers and is ready, but is version {told.version} and this is {__version__}"
        yield Finding(WARN, "server", what, "use the same version on both sides")
    if session.client.server.url.startswith("http:") and not session.client.server.loopback:
        yield Finding(WARN, "server", "the connection is not encrypted", "give the server a certificate, use https")


def _token(session: Session) -> Iterator[Finding]:
    who = session.client.whoami()
    roles = ", ".join(grant.role for grant in who.grants) or "no role"
    yield Finding(OK, "token", f"it speaks for {who.user} ({roles})")
    if not who.teams:
        yield Finding(
            WARN, "token", "it may submit for no team", "ask a lead: gpuyard team members TEAM --set YOU=member"
        )


def _cluster(session: Session) -> Iterator[Finding]:
    told = session.client.status()
    yield _gpus(told)
    yield Finding(OK, "database", told.database)
    if told.database_health is not None:
        yield from _database(told.database_health)
    if told.isolation == "none":
        what = "jobs of all teams run as one user and can reach each other's files and processes"
        yield Finding(
            WARN, "isolation", what, "run the agents as root, so that each user's jobs run as a user of their own"
        )
    else:
        yield Finding(OK, "isolation", told.isolation)
    if told.last_cycle_ms > SLOW_CYCLE_MS:
        yield Finding(WARN, "scheduler", f"the last cycle took {told.last_cycle_ms} ms", "see: gpuyard status")
    for warning in told.warnings:
        yield Finding(WARN, "server", warning)


def _database(health: DatabaseHealth) -> Iterator[Finding]:
    """What was held against its checksums, and what of the log is not used."""
    if health.verified_at is not None:
        scope = "all of the log" if health.complete else "the newest part of the log"
        what = f"{scope} was verified, {health.verified_entries} entries, at {health.verified_at:%Y-%m-%d %H:%M:%S UTC}"
        yield Finding(OK, "database", what)
    for damage in health.damage:
        yield Finding(FAIL, "database", damage, "gpuyard store verify names all of it; then gpuyard restore FILE")
    if health.quarantined:
        what = f"entries of the log in quarantine, which are kept and not used: {health.quarantined}"
        yield Finding(WARN, "database", what, "what is in them: gpuyard store inspect --quarantined")
    for entry in health.quarantine[:MAX_NAMED]:
        yield Finding(WARN, "database", f"entry {entry.seq} ({entry.kind}): {entry.why or 'an admin sees why'}")


def _gpus(told: Status) -> Finding:
    if told.gpus == 0:
        return Finding(FAIL, "gpus", "there is no GPU in the cluster", "see: gpuyard node ls")
    if told.fake:
        what = f"{told.gpus} FAKE GPUs: no real work is done on them"
        return Finding(
            WARN, "gpus", what, "on a machine with NVIDIA GPUs and their driver they are found by themselves"
        )
    return Finding(OK, "gpus", f"{told.gpus}, of which {told.free_gpus} are free")


def _nodes(session: Session) -> Iterator[Finding]:
    nodes = list(session.client.nodes())
    bad = [node for node in nodes if node.state in ("new", "silent", "lost")]
    if not nodes:
        yield Finding(FAIL, "nodes", "no machine has joined", "gpuyard up here, or gpuyard node token for another one")
        return
    if bad:
        names = ", ".join(f"{node.name} ({node.state})" for node in bad[:MAX_NAMED])
        yield Finding(FAIL, "nodes", f"{len(bad)} of {len(nodes)} are not heard of: {names}", "is their agent running?")
    else:
        yield Finding(OK, "nodes", f"all {len(nodes)} are heard of")
    for node in nodes:
        if node.unhealthy:
            what = f"{node.name} is unhealthy and takes no new task: {node.unhealthy}"
            yield Finding(FAIL, "nodes", what, f"see the log of its agent, and: gpuyard node describe {node.name}")
        for trouble in node.trouble[:MAX_NAMED]:
            yield Finding(WARN, "nodes", f"{node.name}: {trouble}", f"see: gpuyard node describe {node.name}")
    yield from _limits(nodes)
    yield from _processes(nodes)
    versions = {node.version for node in nodes if node.version}
    if len(versions) > 1:
        yield Finding(WARN, "nodes", f"agents of versions {', '.join(sorted(versions))}", "bring them to one version")


def _teams(session: Session) -> Iterator[Finding]:
    from gpuyard.model.quantities import MILLI, milli
    from gpuyard.model.queue_notes import Owed, queue_notes

    teams = list(session.client.teams())
    owed = [Owed(team.name, team.parent, None if team.quota is None else milli(team.quota)) for team in teams]
    notes = queue_notes(owed, session.client.status().gpus * MILLI)
    for note in notes:
        yield Finding(WARN, "teams", note, "see: gpuyard team tree")
    if not notes:
        yield Finding(OK, "teams", f"{sum(team.leaf for team in teams)}, with quotas that can be met")


def _limits(nodes: list[NodeObject]) -> Iterator[Finding]:
    """Who can take more cores than it asked for takes them from others."""
    heard = [node for node in nodes if node.state != "new"]
    loose = [node for node in heard if node.cores_kept != "enforced"]
    polled = [node for node in heard if node.memory_kept != "enforced"]
    for found, what in ((loose, "cores are booked, not enforced"), (polled, "memory is only looked at every second")):
        if found:
            names = ", ".join(node.name for node in found[:MAX_NAMED])
            fix = f"run the agent where it may make cgroups; why not: gpuyard node describe {found[0].name}"
            yield Finding(WARN, "limits", f"{what} on {len(found)} of {len(heard)}: {names}", fix)
    if heard and not loose and not polled:
        yield Finding(OK, "limits", "cores and memory of tasks are enforced everywhere")


def _processes(nodes: list[NodeObject]) -> Iterator[Finding]:
    """A command line is no place for a secret where other users' jobs read it."""
    heard = [node for node in nodes if node.state != "new"]
    shared = [node for node in heard if node.process_view != "isolated"]
    if shared:
        names = ", ".join(node.name for node in shared[:MAX_NAMED])
        what = f"tasks see the command lines of other users' jobs on {len(shared)} of {len(heard)}: {names}"
        yield Finding(WARN, "processes", what, f"{shared[0].name}: {shared[0].process_note}")
    elif heard:
        yield Finding(OK, "processes", "a task sees its own processes only, everywhere")


def _disk() -> Iterator[Finding]:
    """Of this machine, where the server's state is if it runs here."""
    import shutil

    from gpuyard.platform.home import gpuyard_home

    home = gpuyard_home()
    if not home.is_dir():
        return
    space = shutil.disk_usage(home)
    percent = 100 * space.free // max(space.total, 1)
    what = f"{space.free >> 30} GiB ({percent} %) are free at {home}"
    verdict = FAIL if percent < EMPTY_DISK_PERCENT else WARN if percent < LOW_DISK_PERCENT else OK
    yield Finding(verdict, "disk", what, "" if verdict == OK else "make room: state and logs of jobs are kept there")
