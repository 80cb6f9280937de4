"""`gpuyard up`, `serve` and `down`: the whole product on this machine, the manager alone, and their end."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.flags import DURATION
from gpuyard.cli.server_file import ServerCommand

if TYPE_CHECKING:
    from gpuyard.service.daemon import Ready
    from gpuyard.service.faces import Face
    from gpuyard.service.settings import Settings

Command = Callable[..., None]
Decorator = Callable[[Command], Command]

_COMMON: tuple[Decorator, ...] = (
    click.option("--home", type=click.Path(path_type=Path), help="Holds all local state; GPUYARD_HOME unless given."),
    click.option("--listen", default="127.0.0.1:7400", show_default=True, metavar="HOST:PORT", help="For people."),
    click.option("--agents-listen", metavar="HOST:PORT", help="For agents; the next port of the same host."),
    click.option(
        "--pool-listen",
        metavar="HOST:PORT",
        help="For platforms, over gRPC; loopback and the second next port unless given.",
    ),
    click.option(
        "--pool-expiry",
        type=DURATION,
        default="15m",
        show_default=True,
        help="How long a step of a plan of the pool may stay unconfirmed.",
    ),
    click.option(
        "--vdk-command",
        default="vdk",
        show_default=True,
        envvar="GPUYARD_VDK_COMMAND",
        metavar="NAME|PATH",
        help="The program that runs data jobs, on the machines; a name is looked for on the PATH of the job.",
    ),
    click.option(
        "--database",
        metavar="URL",
        envvar="GPUYARD_DATABASE",
        help="postgresql://USER@HOST/DB, or a path.  [default: as last time; at first SQLite in the home]",
    ),
    click.option("--name", "names", multiple=True, metavar="NAME", help="A name others reach it by; may be repeated."),
    click.option("--insecure-http", is_flag=True, help="No TLS, although others can reach the address."),
    click.option("--accept-shared-user", is_flag=True, help="Not root: several teams may share one user."),
    click.option(
        "--job-uids",
        metavar="FIRST-LAST",
        envvar="GPUYARD_JOB_UIDS",
        help="User numbers for jobs, one for each user who submits.  [default: as last time; at first "
        "2100000000-2100999999]",
    ),
    click.option("--lease", default="60s", show_default=True, help="How long jobs outlive the contact to the manager."),
    click.option(
        "--streams-per-token",
        type=int,
        default=50,
        show_default=True,
        envvar="GPUYARD_STREAMS_PER_TOKEN",
        metavar="N",
        help="Followed logs and events of one token at once.",
    ),
    click.option(
        "--max-job-body",
        default="1Mi",
        show_default=True,
        envvar="GPUYARD_MAX_JOB_BODY",
        metavar="SIZE",
        help="Of a job or schedule that is sent to it; at most 16Mi.",
    ),
)


def _with(options: tuple[Decorator, ...]) -> Decorator:
    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(cls=ServerCommand, epilog="Then, in another terminal: gpuyard run -- nvidia-smi")
@_with(_COMMON)
@click.option("--node", default="", metavar="NAME", help="What this machine is called; its host name unless given.")
@click.option("--fake-gpus", type=click.IntRange(0, 62), help="So many fake GPUs, even beside real ones; 0: never.")
@click.option("--product", default="", help="What the fake ones are: A100-40, H100, ...")
@click.option("-d", "--detach", is_flag=True, help="Come back once it answers; it goes on in the background.")
def up(detach: bool, node: str, fake_gpus: int | None, product: str, **common: Any) -> None:  # noqa: ANN401
    """Start everything on this machine: manager, database, and this machine as the first node.

    Real GPUs are used where there are some; else fake ones, which is said. It listens on this machine only, and
    asks everybody for a token; the one of the first admin lies in a file that only you can read. Ctrl-C ends all of
    it; jobs that run go on for as long as their lease, and are found again if it is started by then.

    \b
    gpuyard up                                 the first job is then one command away: gpuyard run -- nvidia-smi
    gpuyard up -d                              in the background; gpuyard down ends it
    gpuyard up --listen 0.0.0.0:7400           for other machines too, with TLS of its own
    gpuyard up --database postgresql://gpuyard@db/gpuyard
    """
    settings = _settings(common, with_agent=True, node=node, fake_gpus=fake_gpus, product=product)
    if detach:
        _start_detached(settings)
        return
    _run(settings, _faces(common))


@click.command(cls=ServerCommand)
@_with(_COMMON)
def serve(**common: Any) -> None:  # noqa: ANN401
    """Run the manager in this terminal, without an agent on this machine.

    \b
    gpuyard serve --listen 0.0.0.0:7400
    gpuyard node token                        then on each machine: gpuyard agent --join TOKEN@https://HOST:7400
    """
    _run(_settings(common, with_agent=False), _faces(common))


@click.command()
@click.option("--home", type=click.Path(path_type=Path), help="Of what is to end; GPUYARD_HOME unless given.")
@click.option("--with-jobs", is_flag=True, help="Also end what runs on this machine, politely.")
def down(home: Path | None, with_jobs: bool) -> None:
    """End the manager and the agent of this machine, and its fake GPUs once nothing runs on them.

    What runs goes on for as long as its lease (a minute), and is found again if the manager comes back by then.
    With --with-jobs it is given notice and the grace it asked for; it is queued again when the manager comes back.

    \b
    gpuyard down
    gpuyard down --with-jobs                  and nothing goes on
    """
    from itertools import chain

    from gpuyard.agent.ending import end_what_is_left
    from gpuyard.errors import ServiceError
    from gpuyard.platform.home import gpuyard_home
    from gpuyard.service.lifetime import take_down

    at = home or gpuyard_home()
    any_line = False
    for line in chain(take_down(at), end_what_is_left(at / "agent", with_tasks=with_jobs)):
        any_line = True
        click.echo(line, err=True)
    if not any_line:
        raise ServiceError(f"nothing runs in {at}", fix="start it: gpuyard up")


def _settings(common: dict[str, Any], **more: Any) -> Settings:  # noqa: ANN401
    from gpuyard.platform.home import gpuyard_home
    from gpuyard.service.settings import (
        Settings,
        next_port,
        read_address,
        read_job_body,
        read_lease,
        read_streams_per_token,
    )
    from gpuyard.worlds.standalone.uids import read_uid_range

    listen = read_address(common["listen"])
    agents = common["agents_listen"]
    return Settings(
        home=(common["home"] or gpuyard_home()).absolute(),
        listen=listen,
        agents_listen=read_address(agents, "--agents-listen") if agents else next_port(listen),
        database=_named(common["database"]),
        names=tuple(common["names"]),
        insecure=common["insecure_http"],
        accept_shared_user=common["accept_shared_user"],
        lease_ms=read_lease(common["lease"]),
        uids=read_uid_range(common["job_uids"], "--job-uids") if common["job_uids"] else None,
        streams_per_token=read_streams_per_token(common["streams_per_token"]),
        max_job_bytes=read_job_body(common["max_job_body"]),
        **more,
    )


def _named(database: str | None) -> str:
    """An empty name is no name: a variable that is not set must not lead to another database."""
    from gpuyard.worlds.standalone.store.address import address_of

    if database is not None:
        address_of(database)
    return database or ""


def _faces(common: dict[str, Any]) -> tuple[Face, ...]:
    import os

    # Before gRPC is imported: what goes wrong is said by us, in words, and it would add lines of its own.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from gpuyard.files.durations import duration_ms
    from gpuyard.service.settings import read_address
    from gpuyard.vdk.control.face import ControlFace
    from gpuyard.vdk.control.launch import Vdk
    from gpuyard.vdk.serving.face import PoolFace

    listen = common["pool_listen"]
    expiry_ms = duration_ms(common["pool_expiry"], "--pool-expiry")
    command = common["vdk_command"]
    return (
        PoolFace(read_address(listen, "--pool-listen") if listen else None, expiry_ms=expiry_ms),
        ControlFace(Vdk(command, shutil.which(command) or "")),
    )


def _run(settings: Settings, faces: tuple[Face, ...]) -> None:
    import asyncio

    from gpuyard.service.daemon import Daemon
    from gpuyard.service.lifetime import as_manager

    def tell(what: str, text: str) -> None:
        click.echo(f"{what:10} {text}", err=True)

    async def live() -> None:
        await Daemon(settings, tell, faces).run(lambda ready: _greet(ready, settings))

    with as_manager(settings.home):
        asyncio.run(live())
    click.echo("stopped", err=True)


def _greet(ready: Ready, settings: Settings) -> None:
    click.echo(f"{'address':10} {ready.url}")
    click.echo(f"{'login':10} {_login(ready)}")
    if sys.stdout.isatty() and ready.new_token and ready.token_file:
        click.echo(f"{'':10} {ready.token_file.read_text(encoding='ascii').strip()}")
    if settings.with_agent:
        call = _called()
        click.echo(f"{'try':10} {call} run --gpus 1 -- nvidia-smi      (in another terminal)")
        click.echo(f"{'':10} {' · '.join(f'{call} {word}' for word in ('ls', 'gpu ls', 'top', 'doctor'))}")
    sys.stdout.flush()


def _called() -> str:
    """How this command is called from a terminal: by its name where that is on the path, else as it was just now."""
    from shutil import which

    is_program = Path(sys.argv[0]).name == "gpuyard"
    return sys.argv[0] if is_program and which("gpuyard") is None else "gpuyard"


def _login(ready: Ready) -> str:
    if ready.token_file is None:
        return f"with a token of yours: gpuyard login {ready.url}"
    return f"admin, with the token in {ready.token_file}"


def _start_detached(settings: Settings) -> None:
    from gpuyard.service.lifetime import start_detached

    for line in start_detached(settings, sys.argv[1:]):
        click.echo(line)
