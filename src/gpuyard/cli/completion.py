"""`gpuyard completion`: scripts that let a shell complete commands."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that lets a shell complete commands and flags.

    \b
    eval "$(gpuyard completion bash)"        in ~/.bashrc
    eval "$(gpuyard completion zsh)"         in ~/.zshrc
    gpuyard completion fish > ~/.config/fish/completions/gpuyard.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    root = click.get_current_context().find_root().command
    click.echo(made(root, {}, "gpuyard", "_GPUYARD_COMPLETE").source())
