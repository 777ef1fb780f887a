"""Conversion of outcomes to AG-UI events. Pure.

Rules:

1. A step is named by its path: two open steps of one name would be confused.
2. The chunks of one attempt are one message; a new attempt begins a new one.
3. The output of a step that did not stream is sent once, as its own message, if it is the run's output.
4. A pause is an interrupt, identified by its token; of a client's reply only the token is trusted.
5. A tool call is announced once: when it starts, or before the interrupt that requests its approval.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, assert_never

import attrs
from ag_ui.core import (
    BaseEvent,
    CustomEvent,
    StepFinishedEvent,
    StepStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)

from .._core.outcomes import Aborted, Chunk, Failure, Paused, Started, Success, ToldOutcome, ToolCalled
from .._core.step_paths import ROOT, StepPath, is_tried
from .._runtime.run.json_text import to_json


def plain(value: object) -> Any:
    """Return a value as JSON data for a browser."""
    return json.loads(to_json(value, plain=True))


def as_text(value: object) -> str:
    """Return a value as a message: text, or other values as JSON."""
    return value if isinstance(value, str) else to_json(value, plain=True)


@attrs.define(eq=False)
class EventTranslator:
    """Events sent for one run so far."""

    run_id: str
    _messages: dict[str, str] = attrs.Factory(dict)
    _steps: set[str] = attrs.Factory(set)
    streamed: set[str] = attrs.Factory(set)
    """Paths of steps whose text was sent."""
    paused: list[Paused] = attrs.Factory(list)
    """Open pauses."""
    said: str = ""
    """Name of the last user message that the run knows."""
    seq: int = 0
    """Position of the last stored record that was sent."""
    is_open: bool = False
    """Whether the request opened the run, so events may be named."""
    announced: set[str] = attrs.Factory(set)
    """Ids of announced tool calls, also before an interrupt."""

    def events(self, outcome: ToldOutcome) -> Iterator[BaseEvent]:
        """Yield the events of an outcome."""
        match outcome:
            case Started(path=path):
                self._steps.add(path)
                yield StepStartedEvent(step_name=path)
            case Chunk():
                yield from self._piece(outcome)
            case ToolCalled():
                yield from self._tool_call(outcome)
            case Paused(path=path):
                if outcome.state_token not in [each.state_token for each in self.paused]:
                    self.paused.append(outcome)
                yield from self._over(path)
            case Success(path=path) | Failure(path=path) | Aborted(path=path):
                yield from self._over(path)
            case _:
                assert_never(outcome)

    def record(self, seq: int, kind: str, path: str) -> Iterator[BaseEvent]:
        """Yield a stored record's events: start and end of a step."""
        self.seq = seq
        if kind not in ("started", "settled") or path == ROOT or is_tried(StepPath(path)):
            return
        if path not in self._steps:
            self._steps.add(path)
            yield StepStartedEvent(step_name=path)
        if kind == "settled":
            yield from self._over(path)

    def message(self, text: str) -> Iterator[BaseEvent]:
        """Yield a message of its own, at once."""
        name = f"{self.run_id}:output"
        yield TextMessageStartEvent(message_id=name, role="assistant")
        yield TextMessageContentEvent(message_id=name, delta=text)
        yield TextMessageEndEvent(message_id=name)

    def close_open(self) -> Iterator[BaseEvent]:
        """Whatever is open is over."""
        for path in [*self._messages, *self._steps]:
            yield from self._over(path)

    def _piece(self, chunk: Chunk) -> Iterator[BaseEvent]:
        if not isinstance(chunk.data, str):
            yield CustomEvent(name="chunk", value={"path": chunk.path, "data": plain(chunk.data)})
            return
        name = f"{self.run_id}:{chunk.path}:{chunk.attempt}"
        if self._messages.get(chunk.path) != name:
            yield from self._end_message(chunk.path)
            self._messages[chunk.path] = name
            self.streamed.add(chunk.path)
            yield TextMessageStartEvent(message_id=name, role="assistant")
        if chunk.data:
            yield TextMessageContentEvent(message_id=name, delta=chunk.data)

    def _tool_call(self, call: ToolCalled) -> Iterator[BaseEvent]:
        name = self.call_id(call.tool_call_id)
        if call.status == "started":
            yield from self.announce(call.tool_call_id, call.tool_name, call.arguments)
        else:
            content = call.feedback if call.status == "failed" else as_text(call.result)
            yield ToolCallResultEvent(message_id=f"{name}:result", tool_call_id=name, content=content or "")

    def call_id(self, tool_call_id: str) -> str:
        """Id of a tool call, unique among all runs of a thread."""
        return f"{self.run_id}:{tool_call_id}"

    def announce(self, tool_call_id: str, tool_name: str, arguments: object) -> Iterator[BaseEvent]:
        """Start, arguments and end of a tool call, once."""
        name = self.call_id(tool_call_id)
        if name in self.announced:
            return
        self.announced.add(name)
        yield ToolCallStartEvent(tool_call_id=name, tool_call_name=tool_name)
        yield ToolCallArgsEvent(tool_call_id=name, delta=as_text(arguments))
        yield ToolCallEndEvent(tool_call_id=name)

    def _over(self, path: str) -> Iterator[BaseEvent]:
        yield from self._end_message(path)
        if path in self._steps:
            self._steps.remove(path)
            yield StepFinishedEvent(step_name=path)

    def _end_message(self, path: str) -> Iterator[BaseEvent]:
        name = self._messages.pop(path, None)
        if name is not None:
            yield TextMessageEndEvent(message_id=name)
