"""From outcomes to AG-UI events. Pure: one outcome goes in, the events that tell it come out.

Rules:

1. A step is named by its path: two open steps of one name would be taken for one.
2. The pieces of one attempt are one message; a new attempt begins a new one.
3. What a step that did not stream gives is told once, as a message of its own, if it is what the run gives.
4. A pause is an interrupt, known by its token; nothing that a client sends back is believed but the token.
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

from .._core.outcomes import (
    Aborted,
    Chunk,
    Failure,
    Paused,
    Started,
    Success,
    ToldOutcome,
    ToolCalled,
)
from .._json_text import to_json


def plain(value: object) -> Any:
    """A value as JSON data for a browser."""
    return json.loads(to_json(value, plain=True))


def as_text(value: object) -> str:
    """A value as a message: a text as it is, anything else as JSON."""
    return value if isinstance(value, str) else to_json(value, plain=True)


@attrs.define(eq=False)
class Telling:
    """What of one run has been told so far."""

    run_id: str
    _messages: dict[str, str] = attrs.Factory(dict)
    _steps: set[str] = attrs.Factory(set)
    streamed: set[str] = attrs.Factory(set)
    """The paths of steps whose text was told."""
    paused: list[Paused] = attrs.Factory(list)
    """What waits for an answer."""

    def events(self, outcome: ToldOutcome) -> Iterator[BaseEvent]:
        """The events that tell an outcome."""
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

    def message(self, text: str) -> Iterator[BaseEvent]:
        """A message of its own, at once."""
        name = f"{self.run_id}:output"
        yield TextMessageStartEvent(message_id=name, role="assistant")
        yield TextMessageContentEvent(message_id=name, delta=text)
        yield TextMessageEndEvent(message_id=name)

    def rest(self) -> Iterator[BaseEvent]:
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
        name = f"{self.run_id}:{call.tool_call_id}"
        if call.status == "started":
            yield ToolCallStartEvent(tool_call_id=name, tool_call_name=call.tool_name)
            yield ToolCallArgsEvent(tool_call_id=name, delta=as_text(call.arguments))
            yield ToolCallEndEvent(tool_call_id=name)
        else:
            told = call.feedback if call.status == "failed" else as_text(call.result)
            yield ToolCallResultEvent(message_id=f"{name}:result", tool_call_id=name, content=told or "")

    def _over(self, path: str) -> Iterator[BaseEvent]:
        yield from self._end_message(path)
        if path in self._steps:
            self._steps.remove(path)
            yield StepFinishedEvent(step_name=path)

    def _end_message(self, path: str) -> Iterator[BaseEvent]:
        name = self._messages.pop(path, None)
        if name is not None:
            yield TextMessageEndEvent(message_id=name)
