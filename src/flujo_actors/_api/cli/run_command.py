"""Commands `run` and `eval`: one run, or one per case.

Sections:

- `flujo-actors eval`: a dataset as runs of a pipeline.
"""

from __future__ import annotations

import datetime as dt
import fnmatch
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import anyio
import attrs
import click

from ..._core.validators import span_seconds
from ...errors import DeclarationError, GateError, RunNotFound
from ..fleet_api import SubjectFlujo
from ..wiring import evaluations
from .command_group import Invocation, pass_call
from .file_replacement import replace_file
from .output import DONE, FAILED, print_note
from .run_filters import assignments, content, from_json_text, new_labels
from .run_session import Part, Stop, flujo_of, new_run_id, play
from .run_views import write_text
from .targets import object_of

C = TypeVar("C", bound=Callable[..., object] | click.Command)

if TYPE_CHECKING:
    from ... import Flujo
    from ...terminal._renderers import Progress
    from ..evaluation.evaluation_results import Evaluation
    from ..evaluation.evaluation_run import EvaluationOptions


class RunOptions(TypedDict):
    """Options parsed by `run_options`."""

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
"""Marker of `--input-json` without a value: `--input` is JSON."""


def run_options(command: C) -> C:
    """Return the options of everything that runs a pipeline here."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


_OPTIONS = (
    click.option("--store", metavar="URL", help="Where the run survives; else FLUJO_STORE, or store in flujo.toml."),
    click.option("--stream", is_flag=True, help="Write the last step's text to stdout while it is made."),
    click.option("--events", is_flag=True, help="Print outcomes as JSON lines on stderr."),
    click.option("--json", "as_json", is_flag=True, help="The result as one JSON document."),
    click.option(
        "--progress",
        type=click.Choice(["auto", "live", "plain", "json", "quiet"]),
        default="auto",
        show_default=True,
        help="How to show the run on stderr.",
    ),
    click.option("--watch", "progress", flag_value="live", help="The same as --progress live."),
    click.option("--chunks", is_flag=True, help="With --progress json: also what streams say."),
    click.option("--limit-usd", type=click.FloatRange(0), metavar="N", help="Stop when it has cost so many dollars."),
    click.option("--limit-tokens", type=click.IntRange(0), metavar="N", help="Stop when it has used so many tokens."),
    click.option("--timeout", metavar="SPAN", help="Stop it after so long: 90s, 15m."),
    click.option("--ask", is_flag=True, help="Ask its questions here."),
    click.option(
        "--allow",
        multiple=True,
        metavar="NAME",
        help="Python names that a blueprint may use, in addition to flujo.toml.",
    ),
)


@click.command()
@click.argument("target", required=False)
@click.option("--input", "-i", "text", metavar="TEXT|@FILE|-", help="Input of the run, as text.")
@click.option(
    "--input-json", "json_text", is_flag=False, flag_value=AS_JSON, metavar="JSON|@FILE|-", help="The same as JSON."
)
@click.option("--context", "-c", multiple=True, metavar="NAME=VALUE", help="A field of its context.")
@click.option("--run-id", metavar="ID", help="Id of the run.")
@click.option("--label", "labels", multiple=True, metavar="NAME=VALUE", help="A label of the run; repeatable.")
@click.option("--submit", is_flag=True, help="Leave the run to a worker; print its id.")
@click.option("--queue", default="default", show_default=True, help="With --submit: its queue.")
@click.option("--key", metavar="TEXT", help="With --submit: its key; keys of a queue take turns.")
@click.option("--priority", default=0, metavar="N", help="With --submit: from -100 to 100, the highest first.")
@click.option("--at", metavar="TIME", help="With --submit: start at a time, 2026-12-01T09:00+01:00.")
@click.option("--in", "delay", metavar="SPAN", help="With --submit: start after a span, 90s, 15m, 3h or 2d.")
@run_options
@pass_call
def run(
    call: Invocation,
    /,
    target: str | None,
    text: str | None,
    json_text: str | None,
    context: tuple[str, ...],
    run_id: str | None,
    labels: tuple[str, ...],
    submit: bool,
    queue: str,
    key: str | None,
    priority: int,
    at: str | None,
    delay: str | None,
    **options: Unpack[RunOptions],
) -> int:
    """Run a pipeline: its output to stdout, its progress to stderr.

    TARGET is a blueprint (pipeline.yaml by default), file.py:name or package.module:name.

    Ctrl-C stops the run, waits for its cleanup and prints the resume command; a second one stops at once.
    """
    if text is not None and json_text not in (None, AS_JSON) and target is None:
        target, json_text = json_text, AS_JSON  # `--input TEXT --input-json TARGET`
    data = given_input(text, json_text)
    named = new_labels(labels)
    first = Part(data=data, context=assignments(context) or None, run_id=run_id or new_run_id(), labels=named)
    if submit:
        return _submitted(
            call, target, first, options, {"queue": queue, "key": key, "priority": priority, **_start(at, delay)}
        )
    if at is not None or delay is not None:
        raise DeclarationError("--at and --in need --submit: a worker starts the run")
    return play(call, target, first, options)


def _submitted(call: Invocation, target: str | None, part: Part, options: RunOptions, place: dict[str, Any]) -> int:
    """Submit the run; print its id."""
    flujo = flujo_of(call, target, options)
    if flujo.store is None:
        raise DeclarationError("--submit needs a store: pass --store, or set FLUJO_STORE or store in flujo.toml")
    named: dict[str, Any] = {"run_id": part.run_id, "context": part.context, "labels": part.labels}
    write_text(f"{flujo.submit_sync(part.data, **named, **place)}\n")
    return DONE


def _start(at: str | None, delay: str | None) -> dict[str, object]:
    """Return the start of a submitted run."""
    if at is not None and delay is not None:
        raise DeclarationError("submit: give either at or delay_s")
    if delay is not None:
        return {"delay_s": span_seconds(delay)}
    if at is None:
        return {}
    try:
        return {"at": dt.datetime.fromisoformat(at)}
    except ValueError as error:
        raise DeclarationError(f"--at {at!r} is no time: write 2026-12-01T09:00+01:00") from error


def given_input(text: str | None, json_text: str | None) -> object:
    """Return the input of a run, as text or JSON."""
    if json_text is None:
        return None if text is None else content(text)
    source = text if json_text == AS_JSON else json_text
    return None if source is None else from_json_text(content(source), subject="the input")


# --- `flujo-actors eval`: a dataset as runs of a pipeline ---------------------------------------------------------


class EvalOptions(TypedDict):
    """Options of `eval`."""

    run_id: str | None
    baseline: str | None
    gates: tuple[str, ...]
    evaluators: tuple[str, ...]
    repeat: int
    concurrency: int
    limit_usd: float | None
    queue: str | None
    only: str | None
    store: str | None
    junit: str | None
    markdown: str | None
    as_json: bool
    allow: tuple[str, ...]


@click.command("eval")
@click.argument("target")
@click.argument("dataset", type=click.Path(exists=True, dir_okay=False))
@click.option("--run-id", metavar="ID", help="Id of the evaluation; the same id continues it.")
@click.option("--baseline", metavar="ID|FILE", help="Earlier evaluation to compare with: an id, or a file of --json.")
@click.option("--gate", "gates", multiple=True, metavar="TEXT", help="A condition such as 'pass>=0.9'; repeatable.")
@click.option("--evaluators", multiple=True, metavar="MOD:NAME", help="An evaluator, or a class of the dataset.")
@click.option("--repeat", type=click.IntRange(1), default=1, metavar="N", help="Runs of each case.")
@click.option("--concurrency", type=click.IntRange(1), default=8, show_default=True, metavar="N", help="Runs at once.")
@click.option("--limit-usd", type=click.FloatRange(0, min_open=True), metavar="N", help="Budget of cases and judges.")
@click.option("--queue", metavar="NAME", help="Leave the cases to the workers of a queue.")
@click.option("--only", metavar="GLOB", help="Only cases whose name matches.")
@click.option("--store", metavar="URL", help="Where the runs survive; else FLUJO_STORE, or store in flujo.toml.")
@click.option("--junit", type=click.Path(dir_okay=False), metavar="FILE", help="Write a JUnit report.")
@click.option("--markdown", type=click.Path(dir_okay=False), metavar="FILE", help="Write a Markdown report.")
@click.option("--json", "as_json", is_flag=True, help="The report as JSON.")
@click.option("--allow", multiple=True, metavar="NAME", help="Python names that a blueprint may use.")
@pass_call
def evaluate(call: Invocation, /, target: str, dataset: str, **given: Unpack[EvalOptions]) -> int:
    """Evaluate a pipeline on a dataset, compare and check gates.

    TARGET is a pipeline as in `run`, DATASET a YAML or JSON file of pydantic-evals. Each case is a run; with a store
    and the same --run-id, the command continues where it was stopped.

    Exit code 0: all gates hold, or without gates, every case passed. 1: not so, or stopped by the budget. 2: it could
    not start. 4: another process runs this evaluation.
    """
    options: Any = {"store": given["store"], "limit_usd": None, "limit_tokens": None, "allow": given["allow"]}
    flujo = flujo_of(call, target, options)
    module = _evaluations()
    named = [object_of(each) for each in given["evaluators"]]
    loaded, instances = _loaded(module, dataset, named, given["only"])
    asked = module.EvaluationOptions(
        dataset=loaded,
        evaluators=instances,
        run_id=given["run_id"] or new_run_id(),
        baseline=given["baseline"],
        gates=given["gates"],
        repeat=given["repeat"],
        max_concurrency=given["concurrency"],
        max_cost_usd=given["limit_usd"],
        queue=given["queue"],
        progress=None if call.quiet else _Progress(),
    )
    again = _continuation(flujo, given["run_id"], str(asked.run_id))
    try:
        found = _evaluated(module, flujo, asked, Stop(lambda: again))
    except GateError as error:
        if error.evaluation is not None:
            _report(error.evaluation, given)
        raise
    if isinstance(found, int):
        print_note(again)
        return found
    _report(found, given)
    return DONE if found.passed else FAILED


def _evaluations() -> Any:
    """Return the module of evaluations; `DeclarationError` without the extra."""
    module = evaluations()
    try:
        module.require_evals()
    except ImportError as error:
        raise DeclarationError(str(error)) from error
    return module


@attrs.define
class _Progress:
    """Lines on stderr about finished case runs, about twenty in all."""

    shown: int = 0

    def __call__(self, finished: int, total: int) -> None:
        share = finished * 20 // total
        if share > self.shown or finished == total:
            self.shown = share
            print_note(f"{finished} of {total} case runs are judged")


def _loaded(module: Any, path: str, given: Sequence[Any], only: str | None) -> tuple[Any, list[Any]]:
    """Return the dataset, without filtered cases, and the evaluators of all cases."""
    listed = [each for one in given for each in (one if isinstance(one, list | tuple) else (one,))]
    dataset, instances = module.loaded_dataset(path, listed)
    used = {type(each) for each in (*dataset.evaluators, *(each for case in dataset.cases for each in case.evaluators))}
    unused = [each for each in listed if isinstance(each, type) and each not in used]
    try:
        instances += [each() for each in unused]
    except TypeError as error:
        raise DeclarationError(f"--evaluators: name an instance, or a class of the dataset: {error}") from error
    return (dataset if only is None else _filtered(module, dataset, only)), instances


def _filtered(module: Any, dataset: Any, only: str) -> Any:
    named = zip(module.case_names(dataset), dataset.cases, strict=True)
    kept = [(name, case) for name, case in named if fnmatch.fnmatchcase(name, only)]
    if not kept:
        raise DeclarationError(f"--only {only!r} matches no case of the dataset")
    for name, case in kept:
        case.name = name
    return dataset.model_copy(update={"cases": [case for _, case in kept]})


def _evaluated(module: Any, flujo: Any, asked: EvaluationOptions, stop: Stop) -> Evaluation | int:
    """Return the evaluation, or the exit code of a signal."""

    async def within() -> Evaluation | None:
        with anyio.CancelScope() as scope, stop.cancelling(scope):
            found: Evaluation = await module.evaluate(SubjectFlujo(flujo), asked)
            return found
        return None

    try:
        with stop.signals_handled():
            found = anyio.run(within, backend=flujo.backend())
    except RunNotFound as error:
        raise DeclarationError(str(error)) from error  # a baseline: the command could not start
    return (stop.code or FAILED) if found is None else found


def _report(found: Evaluation, given: EvalOptions) -> None:
    write_text(f"{found.to_json()}\n" if given["as_json"] else found.to_text())
    for path, text in ((given["junit"], found.to_junit), (given["markdown"], found.to_markdown)):
        if path is not None:
            replace_file(Path(path), text())


def _continuation(flujo: Flujo, given: str | None, run_id: str) -> str:
    """Return the line that continues a stopped evaluation."""
    if flujo.store is None:
        return "nothing is kept without a store: with --store URL, an evaluation can be continued"
    again = () if given is not None else ("--run-id", run_id)
    return f"continue it: {shlex.join(['flujo-actors', *sys.argv[1:], *again])}"
