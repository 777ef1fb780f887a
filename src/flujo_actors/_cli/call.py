"""What every command knows of how it was called: the options that may stand before or after its name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click

from .printing import Color, say, wants_color

if TYPE_CHECKING:
    from .. import Settings


@attrs.define(kw_only=True)
class Call:
    """The options of the command itself; one for each call, filled in while arguments are read."""

    config: Path | None = None
    color: Color = "auto"
    verbosity: int = 0
    """-1 quiet, 0 as usual, 1 and more: tell more."""

    @property
    def quiet(self) -> bool:
        """Whether only the result is wanted."""
        return self.verbosity < 0

    def colors(self, stream: Any = None) -> bool:
        """Whether a stream, stdout by default, gets color."""
        return wants_color(self.color, sys.stdout if stream is None else stream)

    def say(self, text: str) -> None:
        """A line for people, unless they want silence."""
        say(text, quiet=self.quiet)

    def settings(self, overrides: dict[str, object] | None = None) -> Settings:
        """The settings of this call: `--config` or `flujo.toml`, the environment, and what options say."""
        from .. import load_settings

        return load_settings(file=self.config, overrides=overrides)


pass_call = click.make_pass_decorator(Call, ensure=True)


def _louder(context: click.Context, _: click.Parameter, count: int) -> None:
    context.ensure_object(Call).verbosity += count


def _quieter(context: click.Context, _: click.Parameter, quiet: bool) -> None:
    if quiet:
        context.ensure_object(Call).verbosity = -1


def _set_color(context: click.Context, _: click.Parameter, color: Color | None) -> None:
    if color is not None:
        context.ensure_object(Call).color = color


def _set_config(context: click.Context, _: click.Parameter, config: str | None) -> None:
    if config is not None:
        context.ensure_object(Call).config = Path(config)


def call_options() -> list[click.Option]:
    """The options that may stand before the command and after it; they fill in the `Call`."""
    return [
        click.Option(
            ["--config"], metavar="FILE", callback=_set_config, expose_value=False, help="Read this flujo.toml."
        ),
        click.Option(
            ["--color"],
            type=click.Choice(["auto", "always", "never"]),
            callback=_set_color,
            expose_value=False,
            help="Color what is printed (auto: on a terminal).",
        ),
        click.Option(["-q", "--quiet"], is_flag=True, callback=_quieter, expose_value=False, help="Only the result."),
        click.Option(
            ["-v", "--verbose"],
            count=True,
            callback=_louder,
            expose_value=False,
            help="Tell more; -vv: tracebacks.",
        ),
    ]
