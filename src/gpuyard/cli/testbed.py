"""`gpuyard kube testbed`: a Kubernetes cluster of real parts on this machine, and what can happen to its machines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuyard.cli.exit_codes import FAILURE
from gpuyard.cli.output import output_option, print_data

if TYPE_CHECKING:
    from gpuyard.testbed.bed import Bed
    from gpuyard.testbed.record import Extras

CONTROL = "control"
NAME = "GPUYARD_TESTBED"

Command = Callable[..., Any]


@click.group(epilog="Needs root on Linux. Several live side by side by --name. More: docs/kube-testbed.md")
def testbed() -> None:
    """A Kubernetes cluster of real parts on this machine, for testing operators, schedulers and device plugins.

    etcd, API server, controller manager, scheduler, and nodes with a kubelet and containerd each, in namespaces of
    their own. Programs are built from their published source once, and kept.

    \b
    gpuyard kube testbed up --nodes 4            bring it up
    eval "$(gpuyard kube testbed env)"           let this shell see it: kubectl, KUBECONFIG
    kubectl get nodes
    gpuyard kube testbed power-off node-2        and see what your operator makes of it
    gpuyard kube testbed down                    the end; nothing is left
    """


def name_option(command: Command) -> Command:
    return click.option(
        "--name",
        default="default",
        envvar=NAME,
        show_default=True,
        show_envvar=True,
        help="Which testbed.",
    )(command)


def _bed(name: str) -> Bed:
    from gpuyard.testbed.bed import Bed

    return Bed.named(name)


def _tell(line: str) -> None:
    click.echo(line, err=True)


# -------------------------------------------------------------------------------------------------------- up and down


EXTRAS = ("kwok", "kwok_gpus", "dns", "training_operator", "operators")
OPERATORS = ("jobset", "kuberay", "lws", "mpi-operator")


def extras_options(command: Command) -> Command:
    many, gpus = click.IntRange(0, 5000), click.IntRange(0, 64)
    others = "JobSet's, KubeRay's, that of LeaderWorkerSets, or that of MPIJobs v2beta1; may be given again."
    for option in (
        click.option("--operator", "operators", type=click.Choice(OPERATORS), multiple=True, help=others),
        click.option("--training-operator", is_flag=True, help="Kubeflow's, for PyTorchJobs; brings DNS with it."),
        click.option("--dns", is_flag=True, help="CoreDNS, so that pods find services by name."),
        click.option("--kwok-gpus", type=gpus, default=0, metavar="GPUS", help="What each of those offers."),
        click.option("--kwok", type=many, default=0, metavar="NODES", help="How many nodes KWOK pretends."),
    ):
        command = option(command)
    return command


def _extras(given: dict[str, Any]) -> Extras:
    from gpuyard.testbed.record import Extras

    return Extras.of(**{option: given.pop(option) for option in EXTRAS})


@testbed.command()
@click.option("--nodes", type=click.IntRange(0, 16), default=4, show_default=True, help="How many real nodes.")
@extras_options
@click.option("--fresh", is_flag=True, help="Replace the testbed of this name, even if it is well.")
@click.option("--keep", is_flag=True, help="Leave what fails to come up as it is, to look into it.")
@name_option
def up(name: str, **given: Any) -> None:  # noqa: ANN401
    """Bring a testbed up and come back when every node is Ready.

    Its programs are built the first time (a quarter of an hour on two cores); GPUYARD_TESTBED_PROGRAMS names a folder
    with ready ones. What the system lacks (containerd, runc, network plugins, busybox) is installed by apt-get.

    \b
    gpuyard kube testbed up
    gpuyard kube testbed up --nodes 1 --name small
    gpuyard kube testbed up --kwok 500 --kwok-gpus 8
    gpuyard kube testbed up --training-operator
    gpuyard kube testbed up --operator jobset --operator kuberay
    """
    from gpuyard.testbed.up import Wanted, bring_up

    bed = bring_up(Wanted(name=name, extras=_extras(given), **given), _tell)
    which = "" if name == "default" else f" --name {name}"
    click.echo(f"export KUBECONFIG={bed.kubeconfig}")
    _tell(f'\nLet this shell see it:  eval "$(gpuyard kube testbed env{which})"')
    _tell(f"Or ask from here:       gpuyard kube testbed kubectl{which} get nodes")
    _tell(f"The end:                gpuyard kube testbed down{which}")


@testbed.command()
@extras_options
def build(**given: Any) -> None:  # noqa: ANN401
    """Install and build everything `up` needs, and start nothing: for the image of a CI machine.

    \b
    gpuyard kube testbed build
    gpuyard kube testbed build --kwok 1 --training-operator
    """
    from gpuyard.testbed import system
    from gpuyard.testbed.programs import built_programs, modules_for

    system.prepare(_tell)
    for name, path in built_programs(modules_for(_extras(given)), _tell).items():
        click.echo(f"{name}\t{path}")


@testbed.command()
@extras_options
@name_option
def add(name: str, **given: Any) -> None:  # noqa: ANN401
    """Add to a testbed that is up: nodes by KWOK, DNS, operators.

    \b
    gpuyard kube testbed add --kwok 500 --kwok-gpus 8
    gpuyard kube testbed add --dns
    """
    extras = _extras(given)
    _bed(name).add(extras, _tell)


@testbed.command()
@click.option("--all", "every", is_flag=True, help="Every testbed of this machine.")
@name_option
def down(name: str, every: bool) -> None:
    """Take a testbed down: no process, mount, interface, namespace or control group is left.

    Works from what `up` has written down before it made it, so also after a crash.

    \b
    gpuyard kube testbed down
    gpuyard kube testbed down --all
    """
    from gpuyard.testbed.down import take_down
    from gpuyard.testbed.record import names

    for one in names() if every else [name]:
        take_down(one)
        _tell(f"{one} is down")


@testbed.command()
@name_option
@output_option
def status(name: str, output: str) -> None:
    """Show its machines and components: health, memory, addresses. Ends with 1 if something is not well.

    \b
    gpuyard kube testbed status
    gpuyard kube testbed status -o json
    """
    from gpuyard.cli.show_testbed import show_status
    from gpuyard.testbed.record import read_record
    from gpuyard.testbed.status import status_of

    found = status_of(read_record(name))
    if output == "text":
        show_status(found)
    else:
        print_data(found, output)
    if not found.healthy:
        click.get_current_context().exit(FAILURE)


@testbed.command()
@output_option
def ls(output: str) -> None:
    """List the testbeds of this machine.

    \b
    gpuyard kube testbed ls
    """
    from gpuyard.cli.show_testbed import show_list
    from gpuyard.testbed.record import names, read_record
    from gpuyard.testbed.status import status_of

    found = [status_of(read_record(name)) for name in names()]
    if output == "text":
        show_list(found)
    else:
        print_data(found, output)


@testbed.command()
@name_option
def env(name: str) -> None:
    """Print what a shell needs to use it.

    \b
    eval "$(gpuyard kube testbed env)"
    """
    from shlex import quote

    bed = _bed(name)
    click.echo(f"export KUBECONFIG={quote(str(bed.kubeconfig))}")
    click.echo(f'export PATH={quote(str(bed.record.program("kubectl").parent))}:"$PATH"')


# What stands behind the first word is kubectl's own, even if it looks like an option of ours.
PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@testbed.command(context_settings=PASSED_ON)
@name_option
@click.argument("words", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, words: tuple[str, ...]) -> None:
    """Run kubectl on it, as its admin.

    \b
    gpuyard kube testbed kubectl get nodes -o wide
    gpuyard kube testbed kubectl --name small get pods --all-namespaces
    """
    from gpuyard.platform.processes import become

    bed = _bed(name)
    become(bed.kubectl_command(words), bed.environment())


# ------------------------------------------------------------------------------------------------ what can happen to it


@testbed.command("power-off")
@click.argument("node")
@name_option
def power_off(node: str, name: str) -> None:
    """Pull the plug of a node: everything on it is gone at once, and nobody is told.

    \b
    gpuyard kube testbed power-off node-2
    """
    _bed(name).power_off(node)
    _tell(f"{node} is off; the cluster notices within 10 s")


@testbed.command("power-on")
@click.argument("node")
@name_option
def power_on(node: str, name: str) -> None:
    """Switch a node on again; its pods come back as after a loss of power.

    \b
    gpuyard kube testbed power-on node-2
    """
    bed = _bed(name)
    bed.power_on(node)
    bed.wait_ready(node)
    _tell(f"{node} is Ready")


@testbed.command()
@click.argument("node")
@name_option
def reboot(node: str, name: str) -> None:
    """Power off and on again.

    \b
    gpuyard kube testbed reboot node-2
    """
    bed = _bed(name)
    bed.reboot(node)
    bed.wait_ready(node)
    _tell(f"{node} is Ready")


def machine_option(command: Command) -> Command:
    which = "Which machine: control, node-1, ..."
    return click.option("--on", "machine", default=CONTROL, show_default=True, help=which)(command)


@testbed.command()
@click.argument("component")
@machine_option
@name_option
def restart(component: str, machine: str, name: str) -> None:
    """Kill one component; it is started again at once, as after a crash.

    \b
    gpuyard kube testbed restart kubelet --on node-1
    gpuyard kube testbed restart kube-apiserver
    """
    _bed(name).restart(component, machine)


@testbed.command()
@click.argument("component")
@machine_option
@name_option
def stop(component: str, machine: str, name: str) -> None:
    """Kill one component and keep it down until `start`.

    \b
    gpuyard kube testbed stop kube-apiserver
    """
    _bed(name).stop(component, machine)


@testbed.command()
@click.argument("component")
@machine_option
@name_option
def start(component: str, machine: str, name: str) -> None:
    """Start a component that was stopped.

    \b
    gpuyard kube testbed start kube-apiserver
    """
    _bed(name).start(component, machine)


@testbed.command()
@click.argument("component")
@machine_option
@name_option
def logs(component: str, machine: str, name: str) -> None:
    """Print what a component has said.

    \b
    gpuyard kube testbed logs kubelet --on node-1 | tail
    """
    click.echo(_bed(name).log(component, machine), nl=False)


@testbed.command("exec", context_settings=PASSED_ON)
@click.argument("machine")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
@name_option
def run_on(machine: str, words: tuple[str, ...], name: str) -> None:
    """Run a command in the namespaces of a machine: control, node-1, ...

    \b
    gpuyard kube testbed exec node-1 ip route
    gpuyard kube testbed exec control sh
    """
    from gpuyard.platform.processes import become

    command = words[1:] if words[0] == "--" else words
    become(_bed(name).command_on(machine, command), {})


@testbed.command("import")
@click.argument("reference")
@click.argument("source", type=click.Path(path_type=Path, exists=True))
@click.option("--node", "nodes", multiple=True, help="Only these; may be given again.  [default: all]")
@click.option("--command", default="sh", show_default=True, help="What the image runs where a pod does not say.")
@click.option("--no-busybox", is_flag=True, help="Only the folder; else busybox and its commands lie in /bin too.")
@name_option
def import_image(reference: str, source: Path, **given: Any) -> None:  # noqa: ANN401
    """Make an image known to the nodes, from a folder or from an archive of `docker save`. No registry is asked.

    Pods use it with `imagePullPolicy: Never`. An archive keeps the name it has.

    \b
    gpuyard kube testbed import testbed.local/app:1 ./rootfs --command /app/run
    gpuyard kube testbed import app:1 app.tar
    """
    import shlex

    from gpuyard.testbed.images import Image

    bed = _bed(given["name"])
    if source.is_dir():
        image = Image(reference, tuple(shlex.split(given["command"])), source, busybox=not given["no_busybox"])
        bed.import_image(image, *given["nodes"])
    else:
        bed.import_archive(source, *given["nodes"])
