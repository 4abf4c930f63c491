"""`hami completion`."""

import click
from click.shell_completion import get_completion_class

from hami.cli.session import Verb


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(context: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    bash: eval "$(hami completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc after compinit;
    fish: hami completion fish > ~/.config/fish/completions/hami.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows all three shells"
    click.echo(kind(context.find_root().command, {}, "hami", "_HAMI_COMPLETE").source())
