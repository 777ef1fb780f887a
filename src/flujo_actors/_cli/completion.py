"""`flujo-actors completion`: a script to source in a shell."""

from __future__ import annotations

import click
from click.shell_completion import ShellComplete, get_completion_class

from .group import COMPLETION_VARIABLE, PROGRAM


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that completes commands in a shell.

    \b
    bash:  eval "$(flujo-actors completion bash)"
    zsh:   eval "$(flujo-actors completion zsh)"
    fish:  flujo-actors completion fish | source
    """
    kind = get_completion_class(shell)
    assert kind is not None  # the choices are shells that click knows
    made = kind(context.find_root().command, {}, PROGRAM, COMPLETION_VARIABLE)
    click.echo(ShellComplete.source(made))  # the shell's own class would look for the shell first
