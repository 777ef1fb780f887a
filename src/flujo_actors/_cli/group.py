"""The command with its commands, none of which is loaded before it is used."""

from __future__ import annotations

import gc
import importlib
from collections.abc import Mapping
from typing import Any

import click

from .._core.near_names import nearest
from .call import Call, call_options
from .commands import COMMANDS, LateCommand
from .exits import INTERRUPTED

PROGRAM = "flujo-actors"
COMPLETION_VARIABLE = "_FLUJO_ACTORS_COMPLETE"


class LateGroup(click.Group):
    """A group whose commands are imported when they are used; the list of them needs none."""

    def __init__(self, *given: Any, late: Mapping[str, LateCommand], **options: Any) -> None:
        super().__init__(*given, **options)
        self.late = late
        self.params.extend(call_options())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All names, sorted."""
        return sorted(self.late)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, loaded now."""
        found = self.late.get(cmd_name)
        return None if found is None else _loaded(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command that the arguments name; a wrong name is refused with the nearest one."""
        name = args[0]
        if name not in self.late and not name.startswith("-"):
            near = nearest(name, sorted(self.late))
            hint = f"did you mean {near!r}?" if near else f"there are {', '.join(sorted(self.late))}"
            ctx.fail(f"there is no command {name!r}: {hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, from the table alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, self.late[name].summary) for name in self.list_commands(ctx)])


def _loaded(late: LateCommand) -> click.Command:
    module, _, name = late.home.partition(":")
    command: click.Command = getattr(importlib.import_module(module, __package__), name)
    _take_call_options(command)
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
    return command


def _take_call_options(command: click.Command) -> None:
    """`-v` and the other options of the call may stand behind the command, too."""
    taken = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    command.params.extend(option for option in call_options() if taken.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _take_call_options(inner)


def flujo_actors() -> click.Group:
    """The command itself."""
    help_text = "Check, draw, run and watch pipelines of LLM agents."
    group = LateGroup(PROGRAM, late=COMMANDS, help=help_text, context_settings={"help_option_names": ["-h", "--help"]})
    return click.version_option(package_name=PROGRAM, prog_name=PROGRAM)(group)


def carry_out(arguments: list[str]) -> int:
    """Carry out what the arguments say; the exit code."""
    try:
        done = flujo_actors().main(
            arguments, prog_name=PROGRAM, standalone_mode=False, complete_var=COMPLETION_VARIABLE, obj=Call()
        )
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.ClickException as refusal:
        refusal.show()
        return refusal.exit_code
    except click.Abort:
        return INTERRUPTED
    return done if isinstance(done, int) else 0
