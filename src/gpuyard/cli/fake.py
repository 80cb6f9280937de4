"""`gpuyard fake`: GPUs that are not there, for programs that believe in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.fake_kube import kube
from gpuyard.cli.inputs import PIPE, InputFile
from gpuyard.cli.output import output_option, print_data
from gpuyard.cli.plugin_flags import plugin_options

if TYPE_CHECKING:
    from gpuyard.fakegpu.daemon import Settings

HOSTNAME_LABELS = ("Hostname", "hostname")
PORT = 9400

Command = Callable[..., Any]


@click.group(
    epilog="A command about one machine takes its name first; a GPU is its index or its id. More: docs/fake-gpus.md"
)
def fake() -> None:
    """Fake GPUs: one model, seen through NVML, nvidia-smi, a DCGM exporter, node labels and a kubelet.

    \b
    gpuyard fake up --gpus 8 --product A100      start eight, in the background
    eval "$(gpuyard fake env)"                   let this shell see them
    nvidia-smi                                   or nvitop, gpustat, your own program
    gpuyard fake run --memory 30GiB -- python train.py    let a program keep one busy
    gpuyard fake fault node-1 3 xid:79 --for 5m  let one fall off the bus
    gpuyard fake status                          what they do
    gpuyard fake kube --help                     on the nodes of a Kubernetes cluster
    gpuyard fake device-plugin --node node-1     offer them to the kubelet of this node
    gpuyard fake down                            the end
    """


def home_option(command: Command) -> Command:
    return click.option(
        "--home",
        type=click.Path(path_type=Path, file_okay=False),
        envvar="GPUYARD_FAKE_HOME",
        help="The folder of the daemon; several homes are several fleets.  [default: one for each user]",
    )(command)


def _home(given: Path | None) -> Path:
    from gpuyard.fakegpu.control import default_home

    return given.absolute() if given else default_home()


def repeat_option(command: Command) -> Command:
    return click.option(
        "--repeat",
        metavar="ROUNDS",
        help="How often the phases come round, or forever.  [default: what the profile says]",
    )(command)


def mig_option(command: Command) -> Command:
    return click.option("--mig", type=click.IntRange(0), help="The instance, counted from 0, where the GPU is cut.")(
        command
    )


def gpu_name(text: str) -> int | str:
    """An index, or an id."""
    return int(text) if text.isascii() and text.isdigit() else text


# -------------------------------------------------------------------------------------------------------- up and down


@fake.command()
@click.option("--gpus", type=click.IntRange(0, 62), help="How many a machine has.  [default: 8]")
@click.option("--product", help="Which: A100, H100, T4, ...; `gpuyard fake products` lists them.  [default: A100]")
@click.option("--machines", type=click.IntRange(1, 50_000), help="How many: node-1, node-2, ...  [default: 1]")
@click.option("--config", type=InputFile(), help="A fleet file instead; changes to it take effect at once.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the exporter listens.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes any free one.")
@click.option(
    "--hostname-label",
    type=click.Choice(HOSTNAME_LABELS),
    default=HOSTNAME_LABELS[0],
    show_default=True,
    help="How the exporter spells the label of the machine; its newest versions write it small.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="For what is drawn at random.")
@click.option("--foreground", is_flag=True, help="Stay in this terminal, and end with it.")
@home_option
def up(**given: Any) -> None:  # noqa: ANN401
    """Bring fake GPUs up: model, NVML, nvidia-smi, exporter.

    \b
    gpuyard fake up --gpus 8 --product A100
    gpuyard fake up --gpus 4 --product H100 --machines 3
    gpuyard fake up --config fleet.yaml
    """
    from gpuyard.fakegpu import daemon
    from gpuyard.fakegpu.launch import bring_up, build_native, refuse_second

    settings = _settings(given)
    if given["foreground"]:
        refuse_second(settings.home)
        build_native(click.echo)
        daemon.run(settings)
        return
    status = bring_up(settings, click.echo)
    click.echo()
    click.echo('Let this shell see them:  eval "$(gpuyard fake env)"')
    click.echo("Then:                     nvidia-smi, nvitop, gpustat, curl " + status.exporter)


def _settings(given: dict[str, Any]) -> Settings:
    from gpuyard.fakegpu.daemon import Settings

    kind = {name: given[name] for name in ("gpus", "product", "machines") if given[name] is not None}
    config = given["config"]
    if config is not None and kind:
        raise click.UsageError(f"--config says everything about the fleet; leave out --{next(iter(kind))}")
    if config == PIPE:
        raise click.UsageError("--config is read again whenever it changes, which a pipe cannot be; name a file")
    listening = {name: given[name] for name in ("host", "port", "hostname_label", "seed")}
    return Settings(_home(given["home"]), config, **kind, **listening)


@fake.command()
@home_option
def down(home: Path | None) -> None:
    """End the fake GPUs; programs that look again find no driver.

    \b
    gpuyard fake down
    """
    from gpuyard.fakegpu.launch import take_down

    click.echo(f"ended process {take_down(_home(home))}")


@fake.command()
@click.argument("node", required=False)
@home_option
@output_option
def env(node: str | None, home: Path | None, output: str) -> None:
    """Print what a shell needs to see the GPUs.

    They are those of one machine; of the first, if none is named.

    \b
    gpuyard fake env node-2
    eval "$(gpuyard fake env)"
    """
    from gpuyard.fakegpu.launch import environment

    found = environment(_home(home), node)
    if output == "text":
        click.echo(found.exports(), nl=False)
    else:
        print_data(found, output)


# ------------------------------------------------------------------------------------------------------------ looking


@fake.command()
@click.argument("node", required=False)
@click.option("--limit", type=click.IntRange(0, 5000), default=16, show_default=True, help="Machines to show at most.")
@home_option
@output_option
def status(node: str | None, limit: int, home: Path | None, output: str) -> None:
    """Show what the fake GPUs do now: all machines, or one.

    \b
    gpuyard fake status
    gpuyard fake status node-2 -o json
    """
    from gpuyard.fakegpu.control import DaemonStatus, Status, ask

    found = ask(_home(home), Status(node, limit), DaemonStatus)
    if output == "text":
        from gpuyard.cli.show_fake import show_status

        show_status(found)
    else:
        print_data(found, output)


@fake.command()
@click.argument("node")
@click.option("--config", type=InputFile(), help="Read the machine from a fleet file; no daemon is needed then.")
@click.option("--basic", is_flag=True, help="Only memory, count, MIG strategy and product.")
@home_option
@output_option
def labels(node: str, config: Path | None, basic: bool, home: Path | None, output: str) -> None:
    """Print the labels feature discovery would give a node.

    \b
    gpuyard fake labels node-1
    gpuyard fake labels node-a --config fleet.yaml -o json
    """
    from gpuyard.fakegpu.control import Labels, ask

    if config is not None:
        from gpuyard.fakegpu.yard import labels_in

        found = labels_in(config, Labels(node, basic))
    else:
        found = ask(_home(home), Labels(node, basic), dict[str, str])
    if output == "text":
        click.echo("".join(f"{name}={value}\n" for name, value in found.items()), nl=False)
    else:
        print_data(found, output)


@fake.command()
@output_option
def products(output: str) -> None:
    """List the GPUs that can be faked.

    \b
    gpuyard fake products
    """
    from gpuyard.fakegpu.products import products as known

    if output == "text":
        from gpuyard.cli.show_fake import show_products

        show_products(known().values())
    else:
        print_data(list(known().values()), output)


@fake.command()
@click.argument("text_or_file")
@repeat_option
@output_option
def profile(text_or_file: str, repeat: str | None, output: str) -> None:
    """Check a utilisation profile, and show how it is understood.

    It is written here, or in a file that is named here.

    \b
    gpuyard fake profile '[{time: 1h, utilization: 80, memory: 60%}, {time: 1h, utilization: 0}]' --repeat 5
    gpuyard fake profile '{"phases": [{"time": "10m", "utilization": "10-30"}], "repeat": 5}'
    gpuyard fake profile training.yaml
    """
    from gpuyard.fakegpu.tasks import given_profile

    found = given_profile(text_or_file, repeat)
    if output == "text":
        from gpuyard.cli.show_fake import show_profile

        show_profile(found)
    else:
        print_data(found, output)


# ------------------------------------------------------------------------------------------------------------- acting


@fake.command()
@click.argument("node")
@click.argument("gpu", type=gpu_name)
@click.argument("what")
@click.option("--for", "how_long", metavar="DURATION", help="Until it is well again: 90s, 5m, 1h.  [default: for ever]")
@home_option
def fault(node: str, gpu: int | str, what: str, how_long: str | None, home: Path | None) -> None:
    """Let something go wrong with a GPU; every face shows it.

    WHAT is one of: unhealthy, xid:79, ecc:corrected:3, ecc:uncorrected, off-the-bus, throttle, memory-loss:8GiB; or of
    the node's device plugin: plugin:crash, plugin:hang, plugin:fail-allocation (of this GPU), plugin:fail-registration.
    GPU may also be all.

    \b
    gpuyard fake fault node-1 3 xid:79 --for 5m
    gpuyard fake fault node-1 0 ecc:uncorrected
    gpuyard fake fault node-1 all plugin:crash --for 30s
    gpuyard fake heal node-1 0
    """
    from gpuyard.fakegpu.control import ALL, Break, ask
    from gpuyard.files.durations import duration_ms

    for_ms = None if how_long is None else duration_ms(how_long, "--for")
    ask(_home(home), Break(node, gpu, what, for_ms), type(None))
    where = f"all GPUs of {node}" if gpu == ALL else f"GPU {gpu} of {node}"
    click.echo(f"{what} on {where}" + (f" for {how_long}" if how_long else " until it is healed"))


@fake.command()
@click.argument("node")
@click.argument("gpu", type=gpu_name)
@home_option
def heal(node: str, gpu: int | str, home: Path | None) -> None:
    """End whatever is wrong with a GPU, or with all of a node.

    \b
    gpuyard fake heal node-1 3
    gpuyard fake heal node-1 all
    """
    from gpuyard.fakegpu.control import ALL, Heal, ask

    ask(_home(home), Heal(node, gpu), type(None))
    click.echo(f"all GPUs of {node} are well" if gpu == ALL else f"GPU {gpu} of {node} is well")


@fake.command()
@click.argument("node")
@click.argument("gpu", type=gpu_name)
@click.option("--memory", required=True, help="How much it takes: 4GiB, 512MiB.")
@click.option(
    "--pid", type=click.IntRange(1), help="Whose; it is given back when that process ends.  [default: your shell]"
)
@click.option("--utilization", type=click.IntRange(0, 100), default=0, show_default=True, help="In per cent.")
@mig_option
@home_option
def use(
    node: str, gpu: int | str, memory: str, pid: int | None, utilization: int, mig: int | None, home: Path | None
) -> None:
    """Let a process use a GPU behind everybody's back.

    \b
    gpuyard fake use node-1 2 --pid 4711 --memory 4GiB
    """
    import os

    from gpuyard.fakegpu.control import Use, ask
    from gpuyard.model.quantities import memory_bytes

    owner = os.getppid() if pid is None else pid
    ask(_home(home), Use(node, gpu, owner, memory_bytes(memory, "--memory"), utilization, mig), type(None))
    click.echo(f"process {owner} uses {memory} of GPU {gpu} of {node}")


@fake.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("--node", help="The machine.  [default: the first]")
@click.option("--gpu", type=gpu_name, metavar="GPU", default="0", show_default=True, help="The GPU it runs on.")
@mig_option
@click.option("--memory", help="How much it takes: 30GiB.  [default: nine tenths of what there is]")
@click.option("--profile", "profile_text", metavar="PROFILE", help="What it does over time.  [default: 100 %]")
@repeat_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@home_option
def run(
    node: str | None,
    gpu: int | str,
    mig: int | None,
    memory: str | None,
    profile_text: str | None,
    repeat: str | None,
    command: tuple[str, ...],
    home: Path | None,
) -> None:
    """Run a program that keeps a fake GPU busy.

    It sees the GPUs of its machine. The exit code is that of the program.

    \b
    gpuyard fake run --gpu 3 --memory 30GiB -- python train.py
    gpuyard fake run --profile '[{time: 30s, utilization: 80}, {time: 10s, utilization: 0}]' -- sleep 60
    """
    from gpuyard.fakegpu.tasks import Task, become_task

    become_task(_home(home), Task(node, gpu, command, memory, profile_text, repeat, mig))


# --------------------------------------------------------------------------------------------------------- Kubernetes


@fake.command("device-plugin")
@click.option(
    "--node",
    envvar="NODE_NAME",
    help="The machine of the model that this node is; also NODE_NAME.  [default: the first]",
)
@click.option("--config", type=InputFile(), help="A fleet file: its machine is modelled here, no daemon is needed.")
@plugin_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Where the exporter listens, with --config.")
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes any free one.")
@home_option
def device_plugin(
    node: str | None,
    config: Path | None,
    plugin_dir: Path,
    inject: bool,
    numa: bool,
    host: str,
    port: int,
    home: Path | None,
) -> None:
    """Offer a machine's fake GPUs to the kubelet of this node.

    It stays in the foreground, follows the fake GPUs that are up here (or a fleet file), and registers again whenever
    the kubelet has been restarted. Pods then ask for nvidia.com/gpu, or for nvidia.com/mig-1g.10gb and the like where
    the machine's MIG strategy is mixed. The home has to be a folder the kubelet knows by the same path.

    \b
    gpuyard fake device-plugin --node node-1
    gpuyard fake device-plugin --node node-1 --config fleet.yaml --home /run/gpuyard-fake-yard
    gpuyard fake fault node-1 all plugin:hang --for 30s
    """
    from gpuyard.fakegpu.kubernetes.plugin import PluginSettings
    from gpuyard.fakegpu.kubernetes.plugin_process import run as be_plugin

    model = None
    if config is not None:
        model = _own_model(_home(home), config, node, host, port)
    be_plugin(PluginSettings(_home(home), node, plugin_dir.absolute(), inject, numa), model)


def _own_model(home: Path, config: Path, node: str | None, host: str, port: int) -> Settings:
    from gpuyard.fakegpu.control import prepare_home
    from gpuyard.fakegpu.daemon import Settings
    from gpuyard.fakegpu.launch import refuse_second

    if config == PIPE:
        raise click.UsageError("--config is read again whenever it changes, which a pipe cannot be; name a file")
    prepare_home(home)
    refuse_second(home)
    return Settings(home, config, host=host, port=port, only=node)


fake.add_command(kube)
