"""The spans of one run that are open.

Rules:
1. A span hangs below the nearest open one: a call below its attempt, an attempt below its step, a step below
   the attempt (or step) of the longest path that contains its own, and otherwise below the run.
2. Ending a span first ends what is still open below it, with an error that says so.
3. Ending what is not open does nothing: it was ended with its parent.
4. A run's clock may start anywhere; it is tied to the time of day when the run span opens.
5. What opens inside a run is the current span of the task that opens it until it ends, so that the spans of user code,
   and of the clients it uses, stand below it. Every step is a task; its threads and coroutines have its contextvars.
6. A span may be ended by another task than its own, as when a step is cut short: then the other's stays as it is.
7. Of a remote step the run is open in another process: what has nothing above it here hangs below the current span.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Literal, TypeAlias

import attrs
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer
from sniffio import AsyncLibraryNotFoundError, current_async_library

from ..._core.paths import StepPath, parent_of
from ..._core.usage import NO_USAGE, Usage
from ._semantic_conventions import Attributes

Level: TypeAlias = Literal["run", "step", "attempt", "model", "tool", "retrieval"]
Key: TypeAlias = tuple[Level, str, str]
"""Level, path, and the call's id where there can be several."""

RUN: Key = ("run", "", "")


@attrs.define(eq=False)
class OpenSpan:
    """A span with what hangs below it, in the order of opening."""

    key: Key
    span: Span
    started_at: float
    outside: Context
    """What was current before it."""
    above: OpenSpan | None = None
    below: dict[Key, OpenSpan] = attrs.field(factory=dict)
    usage: Usage = NO_USAGE


@attrs.define(eq=False)
class OpenSpans:
    """All that is open in one run."""

    _tracer: Tracer
    _clock_offset_ns: int = attrs.field(init=False, default=0)
    _open: dict[Key, OpenSpan] = attrs.field(init=False, factory=dict)
    _current: str = attrs.field(init=False, factory=lambda: context.create_key("flujo_actors"))
    """Under which a task's context knows the span that is open in it."""

    def tie_clock(self, at: float) -> None:
        """Take what the run's clock says for now."""
        self._clock_offset_ns = time.time_ns() - round(at * 1e9)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is open."""
        return not self._open

    def open_run(self, name: str, at: float, attributes: Attributes) -> None:
        """Open the run's span below whatever span is current where the run starts."""
        self.tie_clock(at)
        outside = context.get_current()
        span = self._tracer.start_span(name, outside, attributes=attributes, start_time=self._time(at))
        self._open[RUN] = OpenSpan(RUN, span, at, outside)

    def open(self, key: Key, name: str, at: float, attributes: Attributes, kind: SpanKind = SpanKind.INTERNAL) -> None:
        """Open a span at its place; one that is open under the same key is given up."""
        self.give_up(key, at)
        above, outside = self.nearest(key), context.get_current()
        place = outside if above is None else trace.set_span_in_context(above.span, outside)
        span = self._tracer.start_span(name, place, kind, attributes, start_time=self._time(at))
        self._open[key] = opened = OpenSpan(key, span, at, outside, above)
        if above is not None:
            above.below[key] = opened
        self._make_current(opened)

    def get(self, key: Key) -> OpenSpan | None:
        """The open span of that key."""
        return self._open.get(key)

    def nearest(self, key: Key) -> OpenSpan | None:
        """The open span that something of that key hangs below, if that is here."""
        return next((self._open[place] for place in _places_above(key) if place in self._open), None)

    def end(self, key: Key, at: float, status: Status, attributes: Attributes) -> None:
        """End the span, and before it what is still open below."""
        ending = self._open.get(key)
        if ending is None:
            return
        for left in reversed(list(_descendants(ending))):
            self._end(left, at, Status(StatusCode.ERROR, f"still open when its {key[0]} ended"), {})
        self._end(ending, at, status, attributes)

    def give_up(self, key: Key, at: float) -> None:
        """End a span nobody ended."""
        self.end(key, at, Status(StatusCode.ERROR, "never ended, and begun again"), {})

    def add_event(self, key: Key, name: str, at: float, attributes: Attributes) -> None:
        """Note an event on the nearest open span."""
        span = self._open.get(key) or self.nearest(key)
        if span is not None:
            span.span.add_event(name, attributes, timestamp=self._time(at))

    def _end(self, ending: OpenSpan, at: float, status: Status, attributes: Attributes) -> None:
        del self._open[ending.key]
        if ending.above is not None:
            del ending.above.below[ending.key]
        ending.span.set_attributes(attributes)
        ending.span.set_status(status)
        ending.span.end(self._time(at))
        if _is_within(context.get_value(self._current), ending):
            context.attach(ending.outside)

    def _make_current(self, opened: OpenSpan) -> None:
        # Nothing is detached later: what was current before is attached again, and that in the span's own task only.
        if not _in_a_task():
            return  # a thread's context outlives everything, and a span that nobody ends would stay current in it
        place = trace.set_span_in_context(opened.span, opened.outside)
        context.attach(context.set_value(self._current, opened, place))

    def _time(self, at: float) -> int:
        return self._clock_offset_ns + round(at * 1e9)


def _in_a_task() -> bool:
    try:
        return bool(current_async_library())
    except AsyncLibraryNotFoundError:
        return False


def _is_within(current: object, ending: OpenSpan) -> bool:
    """Whether what is current is that span, or something below it that ended elsewhere."""
    while isinstance(current, OpenSpan) and current is not ending:
        current = current.above
    return current is ending


def _places_above(key: Key) -> Iterator[Key]:
    level, path, _ = key
    if level in ("model", "tool", "retrieval"):
        yield "attempt", path, ""
    if level in ("model", "tool", "retrieval", "attempt"):
        yield "step", path, ""
    while path:
        path = parent_of(StepPath(path))
        yield "attempt", path, ""
        yield "step", path, ""
    yield RUN


def _descendants(root: OpenSpan) -> Iterator[OpenSpan]:
    waiting = list(root.below.values())
    while waiting:
        found = waiting.pop()
        yield found
        waiting += found.below.values()
