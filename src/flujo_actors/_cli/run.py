"""`flujo-actors run`: one run of a pipeline."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import click

from .call import Call, pass_call

C = TypeVar("C", bound=Callable[..., object] | click.Command)

if TYPE_CHECKING:
    from ..terminal._modes import Progress


class RunOptions(TypedDict):
    """What `run_options` reads from the command line."""

    store: str | None
    stream: bool
    events: bool
    as_json: bool
    progress: Progress
    chunks: bool
    limit_usd: float | None
    limit_tokens: int | None
    timeout: str | None
    ask: bool
    allow: tuple[str, ...]


AS_JSON = "\0"
"""Stands for `--input-json` without a value: what `--input` says is JSON."""


def run_options(command: C) -> C:
    """The options of everything that runs a pipeline here."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--store", metavar="URL", help="Where the run survives; else FLUJO_STORE, or store in flujo.toml."),
    click.option("--stream", is_flag=True, help="Write the last step's text to stdout while it is made."),
    click.option("--events", is_flag=True, help="Tell outcomes as JSON lines on stderr."),
    click.option("--json", "as_json", is_flag=True, help="The result as one JSON document."),
    click.option(
        "--progress",
        type=click.Choice(["auto", "live", "plain", "json", "quiet"]),
        default="auto",
        show_default=True,
        help="How to show the run on stderr.",
    ),
    click.option("--chunks", is_flag=True, help="With --progress json: also what streams say."),
    click.option("--limit-usd", type=click.FloatRange(0), metavar="N", help="Stop when it has cost so many dollars."),
    click.option("--limit-tokens", type=click.IntRange(0), metavar="N", help="Stop when it has used so many tokens."),
    click.option("--timeout", metavar="SPAN", help="Stop it after so long: 90s, 15m."),
    click.option("--ask", is_flag=True, help="Ask its questions here."),
    click.option("--allow", multiple=True, metavar="NAME", help="What a blueprint may use, besides flujo.toml."),
)


@click.command()
@click.argument("target", required=False)
@click.option("--input", "-i", "text", metavar="TEXT|@FILE|-", help="What the run is given, as text.")
@click.option(
    "--input-json", "json_text", is_flag=False, flag_value=AS_JSON, metavar="JSON|@FILE|-", help="The same as JSON."
)
@click.option("--context", "-c", multiple=True, metavar="NAME=VALUE", help="A field of its context.")
@click.option("--run-id", metavar="ID", help="What the run is called.")
@run_options
@pass_call
def run(
    call: Call,
    /,
    target: str | None,
    text: str | None,
    json_text: str | None,
    context: tuple[str, ...],
    run_id: str | None,
    **options: Unpack[RunOptions],
) -> int:
    """Run a pipeline: its output to stdout, what it does to stderr.

    TARGET is a blueprint (pipeline.yaml by default), file.py:name or package.module:name.

    Ctrl-C stops the run, waits for its cleanup and says how to resume it; a second one stops at once.
    """
    from .playing import Part, new_run_id, play  # trio, and the user's own modules
    from .values import assignments

    if text is not None and json_text not in (None, AS_JSON) and target is None:
        target, json_text = json_text, AS_JSON  # `--input TEXT --input-json TARGET`
    data = _given(text, json_text)
    first = Part(data=data, context=assignments(context) or None, run_id=run_id or new_run_id())
    return play(call, target, first, options)


def _given(text: str | None, json_text: str | None) -> object:
    from .values import content, from_json_text

    if json_text is None:
        return None if text is None else content(text)
    source = text if json_text == AS_JSON else json_text
    return None if source is None else from_json_text(content(source), what="the input")
