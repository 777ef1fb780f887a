"""Event dispatch to sinks, with redaction.

Rules:
1. `Telemetry` is the only way to a sink: content is removed (unless it is switched on) and secrets are
   hidden once, before the first sink sees the event.
2. Without sinks nothing is done at all; `enabled` lets an emitter skip building the event.
3. A sink that fails is reported once and never harms the run.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, overload

import attrs
from outcome import Error

from .._core.error_info import tried
from .._core.event_kinds import EventKind
from .._core.labels import NO_LABELS
from .._core.settings_model import Settings
from .._core.telemetry_events import EVENT_TYPES, AgentUsage, Event, content_fields, detail_fields, facts
from ._redaction.redactor import LiveRedactor, Redactor

_log = logging.getLogger("flujo_actors")

_CONTENT = {kind: content_fields(event_type) for kind, event_type in EVENT_TYPES.items()}
_DETAIL = {kind: detail_fields(event_type) for kind, event_type in EVENT_TYPES.items()}
# Fields that can hold no secret: numbers, words from a closed list, and the run id, which ties the sinks together.
_FIXED = frozenset({"run_id", "at", "status", "stage", "attempt", "usage"})
_FREE = {
    kind: [name for name in attrs.fields_dict(event_type) if name not in _FIXED]
    for kind, event_type in EVENT_TYPES.items()
}

E = TypeVar("E")
T = TypeVar("T")


class Sink(Protocol):
    """Takes note of events."""

    def emit(self, event: Event) -> None:
        """Record the event, already redacted, without waiting or slow I/O."""


def _as_tuple(sinks: Any) -> tuple[Sink, ...]:
    return tuple(sinks)


@attrs.frozen(eq=False)
class Telemetry:
    """Emit redacted events to every sink; `content` includes content."""

    sinks: tuple[Sink, ...] = attrs.field(default=(), converter=_as_tuple)
    """Receivers of all events."""
    redactor: Redactor | LiveRedactor = attrs.field(factory=Redactor)
    """Redactor of texts."""
    content: bool = attrs.field(default=False, kw_only=True)
    """Whether events include inputs and outputs."""
    verbose: bool = attrs.field(default=False, kw_only=True)
    """Whether events include details."""
    _reported: set[int] = attrs.field(factory=set, repr=False, kw_only=True)

    @property
    def enabled(self) -> bool:
        """Return whether anyone listens."""
        return bool(self.sinks)

    def redact(self, text: str) -> str:
        """Return the text of an error without secrets."""
        return self.redactor.text(text)

    def learn(self, deps: object) -> None:
        """Keep deps made for an attempt: they may hold secrets."""
        if isinstance(self.redactor, LiveRedactor):
            self.redactor.learn(deps)

    def report(self, kind: EventKind, **facts: object) -> None:
        """Build the event of this kind and emit it to every sink."""
        self.emit(EVENT_TYPES[kind](**facts))

    def span_of(self, run_id: str) -> str | None:
        """Return the open span of a run from a tracing sink."""
        asked = (self._guarded(sink, sink.span_of, run_id) for sink in self.sinks if hasattr(sink, "span_of"))
        return next((span for span in asked if span is not None), None)

    @property
    def measures(self) -> bool:
        """Return whether a sink writes numbers of the store."""
        return any(hasattr(sink, "measure") for sink in self.sinks)

    def measure(self, gauges: object) -> None:
        """Give numbers of the store to the sinks that write them."""
        for sink in self.sinks:
            if hasattr(sink, "measure"):
                self._guarded(sink, sink.measure, gauges)

    def emit(self, event: Event) -> None:
        """Emit the event to every sink."""
        if not self.sinks:
            return
        clean = self._guarded(self.redactor, self._clean, event) or self._without_content(event)
        for sink in self.sinks:
            self._guarded(sink, sink.emit, clean)

    def _guarded(self, part: object, act: Callable[[Any], T], event: object) -> T | None:
        # A sink is foreign code that runs inside every step, and so are the fields of the objects that content is
        # copied from: their errors must not become the outcome of a run.
        done = tried(act, event)
        if isinstance(done, Error):
            self._report(part, done.error)
            return None
        return done.value

    def _report(self, part: object, error: BaseException) -> None:
        if id(part) not in self._reported:
            self._reported.add(id(part))
            said = self.redactor.text(f"{type(error).__name__}: {error}")
            name = type(part).__name__
            _log.warning("telemetry: %s failed with %s; it is not reported again", name, said)

    def _clean(self, event: Event) -> Event:
        return self._redacted(event, content=self.content, verbose=self.verbose)

    def _without_content(self, event: Event) -> Event:
        return self._redacted(event, content=False, verbose=False)

    def _redacted(self, event: Event, *, content: bool, verbose: bool) -> Event:
        left_out = (() if content else _CONTENT[event.kind]) + (() if verbose else _DETAIL[event.kind])
        changes: dict[str, Any] = {name: None for name in left_out if getattr(event, name) is not None}
        redactor = self.redactor.current()
        for name in _FREE[event.kind]:
            value = getattr(event, name)
            if name not in left_out and (clean := _hidden(redactor, value)) is not value:
                changes[name] = clean
        return attrs.evolve(event, **changes) if changes else event


def _hidden(redactor: Redactor, value: object) -> object:
    if isinstance(value, str):
        return redactor.text(value)
    # Counts and amounts hold no text, and most runs have no labels.
    return value if value is None or value is NO_LABELS or isinstance(value, int | float) else redactor.value(value)


class MemorySink:
    """Sink that keeps the events, for tests.

    Example:
        ```python
        sink = MemorySink()
        Flujo(Step("greet", str.upper), settings={"telemetry": {"sinks": [sink]}}).run("ada")
        assert sink.kinds()[0] == "run.started"
        ```
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        """Received events, in order."""

    def emit(self, event: Event) -> None:
        """Keep the event."""
        self.events.append(event)

    def kinds(self) -> list[str]:
        """Return the kinds of the events, in order."""
        return [event.kind for event in self.events]

    @overload
    def of(self, kind: str) -> list[Event]: ...
    @overload
    def of(self, kind: type[E]) -> list[E]: ...
    def of(self, kind: str | type[object]) -> list[Any]:
        """Return the events of one kind, by name or class.

        Args:
            kind: kind or class of the events.
        """
        if isinstance(kind, str):
            return [event for event in self.events if event.kind == kind]
        return [event for event in self.events if isinstance(event, kind)]


_TROUBLE = frozenset({"step.retry", "step.fallback", "step.unstoppable", "hook.failed", "aros.repair.failed"})
_MILESTONES = frozenset({"run.started", "run.ended", "run.paused", "run.resumed", "run.retried", "step.ended"})


class LogSink:
    """One structured line per event: `step.ended run_id=… path=… status=success`.

    Trouble is logged as a warning, milestones as information, the rest for debugging. Each record carries the
    same facts as a dict in its attribute `flujo`, for formatters that write JSON.

    Args:
        logger: logger; by default `flujo_actors.events`.

    Example:
        ```python
        flujo = Flujo(Step("greet", str.upper), settings={"telemetry": {"sinks": [LogSink()]}})
        assert flujo.run("ada").output == "ADA"
        ```
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("flujo_actors.events")

    def emit(self, event: Event) -> None:
        """Log the event."""
        level = log_level(event)
        if self._logger.isEnabledFor(level):
            said = facts(event)
            self._logger.log(level, "%s", log_line(said), extra={"flujo": said})


def log_level(event: Event) -> int:
    """Return an event's log level; uncounted tokens are a warning."""
    failed = getattr(event, "status", None) in ("failure", "failed")
    if failed or event.kind in _TROUBLE or (isinstance(event, AgentUsage) and event.zero_tokens):
        return logging.WARNING
    return logging.INFO if event.kind in _MILESTONES else logging.DEBUG


def log_line(said: dict[str, object]) -> str:
    """Return `kind key=value …` on one line, with JSON strings."""
    pairs = (f"{name}={_on_one_line(value)}" for name, value in said.items() if name not in ("kind", "at"))
    return " ".join((str(said["kind"]), *pairs))


def _on_one_line(value: object) -> str:
    if not _is_word(value):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _is_word(value: object) -> bool:
    if isinstance(value, str):
        return value.isprintable() and not any(character in value for character in ' "=')
    return isinstance(value, int | float)


# --- from settings ----------------------------------------------------------------------------------------------


def open_telemetry(settings: Settings, environ: Mapping[str, str], deps: Iterable[object]) -> Telemetry:
    """Return telemetry that hides the secrets of the environment and `deps`."""
    logging_sink = (LogSink(),) if settings.telemetry.log else ()
    for sink in settings.telemetry.sinks if settings.telemetry.metric_labels else ():
        if hasattr(sink, "label_metrics"):
            sink.label_metrics(settings.telemetry.metric_labels)
    return Telemetry(
        sinks=(*settings.telemetry.sinks, *logging_sink),
        redactor=LiveRedactor(environ, list(deps)),
        content=settings.telemetry.content,
        verbose=settings.aros.telemetry.verbose,
    )
