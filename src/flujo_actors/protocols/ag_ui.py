"""A pipeline as an AG-UI agent: `app.mount("/agent", ag_ui_app(flujo))`. Needs the extra `ag-ui`.

A run is told as a stream of AG-UI events (server-sent events), a pause is an interrupt with the schema of its answer,
and the answer comes as `resume`. The id that a client chooses for a run may only start one: going on with a run needs
the token of its pause, which is checked and used up where the run is kept.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

from ag_ui.core import (
    BaseEvent,
    Interrupt,
    ResumeEntry,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedCancelledOutcome,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunFinishedSuccessOutcome,
    RunStartedEvent,
    StateSnapshotEvent,
    UserMessage,
)
from pydantic import ValidationError
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from .._core.outcomes import Paused, PipelineResult
from .._handle import RunHandle
from .._runner import Flujo
from ..errors import FlujoError, InvalidAnswer
from ._ag_ui_events import Telling, as_text, plain
from ._questions import schema_of

Read = Callable[[RunAgentInput], object]
"""What a pipeline is given of a client's request."""


def ag_ui_app(flujo: Flujo, *, data: Read | None = None) -> Starlette:
    """An ASGI application that speaks AG-UI for a pipeline.

    The pipeline is given the text of the last user message, or what `data` makes of the request; a state that the
    client sends sets fields of the run's context. Who may call it is the matter of the application around it.
    """
    read = data or last_user_text

    async def agent(request: Request) -> Response:
        try:
            asked = RunAgentInput.model_validate_json(await request.body())
        except ValidationError as error:
            return JSONResponse({"error": f"that is no AG-UI request: {error}"}, status_code=422)
        return EventSourceResponse(_sent(_events(flujo, asked, read)), sep="\n")

    return Starlette(routes=[Route("/", agent, methods=["POST"])])


def last_user_text(asked: RunAgentInput) -> str:
    """What the user said last."""
    for message in reversed(asked.messages):
        if isinstance(message, UserMessage):
            parts = message.content if isinstance(message.content, list) else [message.content]
            return "".join(part if isinstance(part, str) else getattr(part, "text", "") for part in parts)
    return ""


async def _sent(events: AsyncGenerator[BaseEvent, None]) -> AsyncGenerator[ServerSentEvent, None]:
    async with aclosing(events):
        async for event in events:
            yield ServerSentEvent(data=event.model_dump_json(by_alias=True), sep="\n")


async def _events(flujo: Flujo, asked: RunAgentInput, read: Read) -> AsyncGenerator[BaseEvent, None]:
    yield RunStartedEvent(thread_id=asked.thread_id, run_id=asked.run_id)
    telling = Telling(asked.run_id)
    result: PipelineResult | None = None
    try:
        for begin in _parts(flujo, asked, read):
            telling.paused.clear()
            async with begin() as run:
                async for outcome in run:
                    for event in telling.events(outcome):
                        yield event
                result = await run
    except FlujoError as error:
        for event in telling.rest():
            yield event
        yield RunErrorEvent(message=str(error), code=type(error).__name__)
        return
    for event in telling.rest():
        yield event
    if result is not None:
        for event in _end(flujo, asked, telling, result):
            yield event


def _parts(flujo: Flujo, asked: RunAgentInput, read: Read) -> list[Callable[[], RunHandle]]:
    """What is to be run: a new run, or the rest of a paused one for each answer."""
    if not asked.resume:
        state = asked.state if isinstance(asked.state, dict) and asked.state else None
        begin = functools.partial(flujo.run_async, run_id=asked.run_id, started=True, tools=True, context=state)
        return [functools.partial(begin, read(asked))]
    return [
        functools.partial(flujo.resume_async, entry.interrupt_id, _answer(entry), started=True, tools=True)
        for entry in asked.resume
    ]


def _answer(entry: ResumeEntry) -> object:
    if entry.status == "cancelled":
        raise InvalidAnswer(
            f"{entry.interrupt_id!r} was not answered; to end the run, cancel it (RunClient.cancel) instead of resuming"
        )
    return entry.payload


def _end(flujo: Flujo, asked: RunAgentInput, telling: Telling, result: PipelineResult) -> list[BaseEvent]:
    if result.status == "failed":
        return [RunErrorEvent(message=result.feedback or "the run failed")]
    events: list[BaseEvent] = [StateSnapshotEvent(snapshot=plain(result.final_context))]
    if result.status == "completed" and result.output is not None and not _was_streamed(telling, result):
        events.extend(telling.message(as_text(result.output)))
    events.append(
        RunFinishedEvent(
            thread_id=asked.thread_id,
            run_id=asked.run_id,
            result=plain(result.output),
            outcome=_outcome(flujo, telling, result),
        )
    )
    return events


def _was_streamed(telling: Telling, result: PipelineResult) -> bool:
    return bool(result.step_history) and result.step_history[-1].name in telling.streamed


def _outcome(flujo: Flujo, telling: Telling, result: PipelineResult) -> Any:
    match result.status:
        case "paused":
            return RunFinishedInterruptOutcome(interrupts=[_interrupt(flujo, each) for each in telling.paused])
        case "aborted":
            return RunFinishedCancelledOutcome()
    return RunFinishedSuccessOutcome()


def _interrupt(flujo: Flujo, paused: Paused) -> Interrupt:
    token = paused.state_token or ""
    return Interrupt(
        id=token, reason="question", message=paused.message, response_schema=schema_of(flujo.pipeline, token)
    )
