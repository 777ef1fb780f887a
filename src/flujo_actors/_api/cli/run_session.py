"""Sessions of `flujo-actors run` and `runs resume`.

Sections:

- `--ask`: prompts of a run, answered in the terminal where it runs.
- Signals: graceful stop, then immediate stop.
- `Flujo` of a target, with the store and limits of the command line.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

import anyio
import attrs

from ... import Flujo, UsageLimits, structured
from ..._core.outcomes import PipelineResult
from ..._core.records.pause_tokens import parse_token
from ..._dsl.declaration_tree import find_step
from ..._durable.watch_poller import loop_callback
from ...errors import InvalidAnswer
from ..wiring import limits_of as checked
from ..wiring import statistics_of, store_of
from .command_group import Invocation
from .output import FAILED, printable
from .run_filters import answers, seconds
from .run_views import BY_STATUS, RunView, print_result
from .targets import DEFAULT, is_python, object_of, pipeline_of

if TYPE_CHECKING:
    from ..._durable.pipeline_diff import ResumeMode
    from ..handle import RunHandle
    from .run_command import RunOptions


# --- `--ask`: prompts of a run ------------------------------------------------------------------------------------


def read_answers(flujo: Flujo, result: PipelineResult) -> list[Any] | None:
    """Return the possible meanings of the typed answer; `None` without one."""
    sys.stderr.write(f"{printable(result.feedback or '', lines=True)}\n> ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        return None
    return answers(line.rstrip("\r\n"), _schema(flujo, str(result.state_token)))


def _schema(flujo: Flujo, token: str) -> object:
    """Return the JSON Schema of an answer, if the pipeline defines it."""
    step = find_step(flujo.pipeline, parse_token(token)[1])
    wanted = getattr(step, "input_schema", None)
    if wanted is None or isinstance(wanted, dict):
        return wanted
    return dict(structured.compile_schema(wanted).json_schema)


# --- Signals ------------------------------------------------------------------------------------------------------
# Rules:
#
# 1. A first Ctrl-C or SIGTERM cancels the run; the command ends with 130 or 143 after its cleanup.
# 2. A second one ends the process, and prints the steps in flight.
# 3. Between two sessions of a run, during a prompt, Ctrl-C is Python's own.


SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Signal state of the process."""

    def __init__(self, left: Callable[[], str]) -> None:
        self._left = left
        """Callback that returns the steps in flight."""
        self.signal_number: int | None = None
        """The signal that came first."""
        self._cancel: Callable[[], object] | None = None

    @contextlib.contextmanager
    def signals_handled(self) -> Iterator[None]:
        """A time in which signals are for the run."""
        before = {number: signal.signal(number, self._on_signal) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def cancelling(self, scope: anyio.CancelScope) -> Iterator[None]:
        """Cancel this scope on the first signal, even an earlier one."""
        ring = loop_callback()
        self._cancel = lambda: ring(scope.cancel)
        if self.signal_number is not None:
            scope.cancel()
        try:
            yield
        finally:
            self._cancel = None

    @property
    def code(self) -> int | None:
        """Return the exit code of a received signal, or None."""
        return None if self.signal_number is None else 128 + self.signal_number

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            self._end(number)
        self.signal_number = number
        if self._cancel is not None:
            self._cancel()

    def _end(self, number: int) -> None:
        """Exit now without cleanup; only a hidden cursor is restored."""
        shown = "\x1b[?25h\n" if sys.stderr.isatty() and os.environ.get("TERM") != "dumb" else ""
        os.write(2, f"{shown}stopped at once; {self._left()}\n".encode("utf-8", "replace"))
        os._exit(128 + number)


# --- `Flujo` of a target ------------------------------------------------------------------------------------------


def flujo_of(call: Invocation, target: str | None, options: RunOptions) -> Flujo:
    """Return the `Flujo` of a target, or one made from its pipeline."""
    named = target or DEFAULT
    found = object_of(named) if is_python(named) else None
    settings = call.settings()
    if isinstance(found, Flujo):
        url = options["store"] or (settings.store if found.store is None else None)
        return _varied(found, url, limits_of(options))
    pipeline = pipeline_of(target, allow=options["allow"], config=call.config)
    return Flujo(pipeline, store=options["store"] or settings.store, usage_limits=limits_of(options), settings=settings)


def _varied(flujo: Flujo, store: str | None, limits: UsageLimits | None) -> Flujo:
    """Return the `Flujo` with the command line's store and limits."""
    other = copy.copy(flujo)
    if store is not None:
        other._store = store_of(store, flujo.pipeline, flujo._first_context.model)
        other._beliefs = statistics_of(other._store, flujo.pipeline)
    if limits is not None:
        other._limits = checked(limits, flujo.pipeline)
    return other


def limits_of(options: RunOptions) -> UsageLimits | None:
    """Return the limits of the command line, or None."""
    cost, tokens = options["limit_usd"], options["limit_tokens"]
    if cost is None and tokens is None:
        return None
    return UsageLimits(total_cost_usd_limit=cost, total_tokens_limit=tokens)


# --- Sessions of `flujo-actors run` and `runs resume` -------------------------------------------------------------


def new_run_id() -> str:
    """Return a name that no other run has."""
    return os.urandom(16).hex()


@attrs.frozen(kw_only=True)
class Part:
    """Input of a session: a new run, a resume or an answer."""

    data: object = None
    context: dict[str, object] | None = None
    run_id: str
    labels: dict[str, str] = attrs.Factory(dict)
    token: str | None = None
    """Id of a run to resume, or token of a pause."""
    answers: list[object] = attrs.Factory(list)
    """Possible meanings of the answer, likeliest first."""
    mode: ResumeMode = "strict"

    def start(self, flujo: Flujo) -> RunHandle:
        """Return the run, or the rest of it."""
        if self.token is None:
            named: dict[str, Any] = {"run_id": self.run_id, "context": self.context, "labels": self.labels}
            return flujo.run_async(self.data, started=True, tools=True, **named)
        answer: dict[str, Any] = {"answer": self.answers[0]} if self.answers else {}
        return flujo.resume_async(self.token, mode=self.mode, started=True, tools=True, **answer)


def play(call: Invocation, target: str | None, part: Part, options: RunOptions) -> int:
    """Run to the end or an unanswered pause; return the exit code."""
    flujo = flujo_of(call, target, options)
    view = RunView(call, flujo, options, target=target, run_id=part.run_id)
    span = math.inf if options["timeout"] is None else seconds(options["timeout"])
    session = _InteractiveRun(call=call, flujo=flujo, view=view, stop=Stop(view.left), span=span)
    result = session.result(part)
    while result is not None and result.status == "paused" and options["ask"] and session.stop.signal_number is None:
        answers = read_answers(flujo, result)
        if answers is None:
            break
        result = session.answered(attrs.evolve(part, token=result.state_token, answers=answers), result)
    if result is None:
        return session.stopped(options["timeout"])
    print_result(view, result, options)
    return session.stop.code or BY_STATUS[result.status]


@attrs.frozen(kw_only=True, eq=False)
class _InteractiveRun:
    """One call of the command."""

    call: Invocation
    flujo: Flujo
    view: RunView
    stop: Stop
    span: float
    """Timeout of a session in seconds."""

    def result(self, part: Part) -> PipelineResult | None:
        """Return the result of one part of the run; `None` if stopped."""
        with self.stop.signals_handled():
            return anyio.run(self._watched, part, backend=self.flujo.backend())

    async def _watched(self, part: Part) -> PipelineResult | None:
        most = None if self.span == math.inf else self.span
        with self.view.open(), anyio.move_on_after(most) as scope, self.stop.cancelling(scope):
            return await self.view.follow(part.start(self.flujo))
        return None

    def answered(self, part: Part, before: PipelineResult) -> PipelineResult | None:
        """Return the result after an answer; unchanged if no meaning fits."""
        first: InvalidAnswer | None = None
        for meant in part.answers:
            try:
                return self.result(attrs.evolve(part, answers=[meant]))
            except InvalidAnswer as error:
                first = first or error
        self.call.print_note(str(first))
        return before

    def stopped(self, timeout: str | None) -> int:
        """Print the resume command; return the exit code."""
        if self.stop.signal_number is None:
            self.view.print_note(f"stopped: it took longer than {timeout}")
        self.view.show_resume_command()
        return self.stop.code or FAILED
