"""Command group with lazily loaded commands.

Sections:

- Table of commands: module and summary of each.
- `flujo-actors completion`: a script to source in a shell.
"""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import attrs
import click
from click.shell_completion import ShellComplete, get_completion_class

import flujo_actors as library

from ..._core.validators import nearest
from .output import INTERRUPTED, Color, print_note, wants_color

if TYPE_CHECKING:
    from ... import Settings


@attrs.define(kw_only=True)
class Invocation:
    """Global options; one object per call, filled while arguments are parsed."""

    config: Path | None = None
    color: Color = "auto"
    verbosity: int = 0
    """-1 quiet, 0 normal, 1 and more: verbose."""

    @property
    def quiet(self) -> bool:
        """Return whether only the result is wanted."""
        return self.verbosity < 0

    def colors(self, stream: Any = None) -> bool:
        """Return whether a stream, stdout by default, gets color."""
        return wants_color(self.color, sys.stdout if stream is None else stream)

    def print_note(self, text: str) -> None:
        """A line for people, unless they want silence."""
        print_note(text, quiet=self.quiet)

    def settings(self, overrides: dict[str, object] | None = None) -> Settings:
        """Return the settings of this call: config file, environment, then options."""
        return library.load_settings(file=self.config, overrides=overrides)


pass_call = click.make_pass_decorator(Invocation, ensure=True)


def _louder(context: click.Context, _: click.Parameter, count: int) -> None:
    context.ensure_object(Invocation).verbosity += count


def _quieter(context: click.Context, _: click.Parameter, quiet: bool) -> None:
    if quiet:
        context.ensure_object(Invocation).verbosity = -1


def _set_color(context: click.Context, _: click.Parameter, color: Color | None) -> None:
    if color is not None:
        context.ensure_object(Invocation).color = color


def _set_config(context: click.Context, _: click.Parameter, config: str | None) -> None:
    if config is not None:
        context.ensure_object(Invocation).config = Path(config)


def call_options() -> list[click.Option]:
    """Return the global options, valid before and after the command."""
    return [
        click.Option(
            ["--config"], metavar="FILE", callback=_set_config, expose_value=False, help="Read this flujo.toml."
        ),
        click.Option(
            ["--color"],
            type=click.Choice(["auto", "always", "never"]),
            callback=_set_color,
            expose_value=False,
            help="Colored output (auto: on a terminal).",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, callback=_quieter, expose_value=False, help="Only the result."),
        click.Option(
            ["-v", "--verbose"],
            count=True,
            callback=_louder,
            expose_value=False,
            help="Verbose output; -vv: tracebacks.",
        ),
    ]


# --- Table of commands --------------------------------------------------------------------------------------------
# A command is a click command in its own module, `"module:function"` relative to this package, and is imported on
# use.
# Its other dependencies (yaml, trio, a store) are imported when it runs.


@attrs.frozen
class LateCommand:
    """A command that is not loaded yet."""

    home: str
    """`module:function`."""
    summary: str
    """Summary in the command list: the first line of its help."""


COMMANDS: Mapping[str, LateCommand] = MappingProxyType(
    {
        "worker": LateCommand(".worker_process:worker", "Execute queued runs until stopped."),
        "completion": LateCommand(".command_group:completion", "Print a script that completes commands in a shell."),
        "init": LateCommand(".init_command:init", "Make a project with a blueprint that runs offline."),
        "schema": LateCommand(".validate_command:schema", "Print the JSON Schema of blueprints, for editors."),
        "show": LateCommand(".show_command:show", "Draw a pipeline as tree, Mermaid, DOT, SVG, JSON or blueprint."),
        "explain": LateCommand(".validate_command:explain", "Explain a rule: why, a bad and a good example, the fix."),
        "run": LateCommand(".run_command:run", "Run a pipeline: its output to stdout, its progress to stderr."),
        "eval": LateCommand(".run_command:evaluate", "Evaluate a pipeline on a dataset, compare and check gates."),
        "replay": LateCommand(".rehearse_command:replay", "Run TARGET on recorded runs, without effects."),
        "rehearse": LateCommand(
            ".rehearse_command:rehearse", "Run stored runs on TARGET from their first changed step."
        ),
        "runs": LateCommand(".runs_command:runs", "Inspect stored runs, answer, resume, cancel and delete them."),
        "workers": LateCommand(".store_commands:workers", "List the live workers of a store."),
        "webhooks": LateCommand(".store_commands:webhooks", "List or retry the messages to webhooks."),
        "limits": LateCommand(".store_commands:limits", "List the rate limits and current budgets of a store."),
        "queues": LateCommand(".store_commands:queues", "List the queues of a store: depth, oldest run, workers."),
        "events": LateCommand(".store_commands:events", "Send events to waiting runs, and list them."),
        "schedules": LateCommand(".store_commands:schedules", "List, pause, trigger and backfill schedules."),
        "store": LateCommand(".store_commands:store", "Show, check, migrate and vacuum the database of a store."),
        "validate": LateCommand(".validate_command:validate", "Check blueprints, and fix them with --fix."),
        "page": LateCommand(".page_command:page", "Show the runs of a store in a browser."),
        "serve": LateCommand(".page_command:serve_page", "Serve the run page: an alias of `page`."),
    }
)


# --- Command group with lazily loaded commands --------------------------------------------------------------------


PROGRAM = "flujo-actors"
COMPLETION_VARIABLE = "_FLUJO_ACTORS_COMPLETE"


class LateGroup(click.Group):
    """Group whose commands are imported on use; listing them imports none."""

    def __init__(self, *given: Any, late: Mapping[str, LateCommand], **options: Any) -> None:
        super().__init__(*given, **options)
        self.late = late
        self.params.extend(call_options())

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return all names, sorted."""
        return sorted(self.late)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, loaded now."""
        found = self.late.get(cmd_name)
        return None if found is None else _loaded(found)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the named command; refuse an unknown name with the nearest one."""
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
    """Accept `-v` and the other global options after the command, too."""
    taken = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    command.params.extend(option for option in call_options() if taken.isdisjoint(option.opts))
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _take_call_options(inner)


def flujo_actors() -> click.Group:
    """Return the command itself."""
    help_text = "Check, draw, run and watch pipelines of LLM agents."
    group = LateGroup(PROGRAM, late=COMMANDS, help=help_text, context_settings={"help_option_names": ["-h", "--help"]})
    return click.version_option(package_name=PROGRAM, prog_name=PROGRAM)(group)


def carry_out(arguments: list[str]) -> int:
    """Run the command of these arguments; return the exit code."""
    try:
        done = flujo_actors().main(
            arguments, prog_name=PROGRAM, standalone_mode=False, complete_var=COMPLETION_VARIABLE, obj=Invocation()
        )
    except click.exceptions.Exit as left:
        return left.exit_code
    except click.ClickException as refusal:
        refusal.show()
        return refusal.exit_code
    except click.Abort:
        return INTERRUPTED
    return done if isinstance(done, int) else 0


# --- `flujo-actors completion`: a script to source in a shell -----------------------------------------------------


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
    click.echo(ShellComplete.source(made))  # the shell's own class would search for the shell first
