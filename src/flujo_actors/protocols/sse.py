"""Server-sent events of one run, for FastAPI and Starlette (extra `page`).

Rules:

1. `record`, `paused` and `ended` have the sequence number of their record as id. `Last-Event-ID`, or `?after=`,
   continues after that record.
2. A question is sent with the first batch that it is open in, also after a reconnect: it has no id.
3. The stream closes after `ended`. A reader that reconnects to an ended run gets the missing records and `ended`.
4. A `text` event has the text of an open step so far, its last 4,096 characters: readers replace what they show.
5. Texts pass the redactor. With `content=False` prompts, texts, notes, arguments and outputs are left out.
6. The run is looked up before the stream begins: an unknown run is status 404.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import attrs

from .._api.async_client import AsyncRunClient
from .._api.client import RunClient
from .._core.lazy_exports import missing_extra
from .._core.records.records import has_ended
from .._core.views.record_summaries import RecordSummary
from .._durable.pause_lookup import Question, question_data
from .._runtime.run.json_text import to_json
from ..errors import RunNotFound
from ..stores._store_port import Store
from ..telemetry._redaction.redactor import redacted_value

try:
    from sse_starlette import EventSourceResponse, ServerSentEvent
    from starlette.requests import Request
    from starlette.responses import JSONResponse, Response
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra="page", needed_by="flujo_actors.protocols.sse") from _missing

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from .._durable.watch_poller import RunWatch

T = TypeVar("T")

Client: TypeAlias = AsyncRunClient | RunClient | Store | str
"""Client of a store, or a store or its URL."""

SseEvent: TypeAlias = dict[str, Any]
"""Event with `event`, `data` and, for records, `id`."""

TEXT_S = 0.05
"""Minimum interval of text events; later text is batched."""


def sse_response(
    request: Request,
    client: Client,
    run_id: str,
    *,
    texts: bool = True,
    content: bool = True,
    heartbeat_s: float = 15,
) -> Response:
    """Return the event stream of a run as a response.

    Args:
        request: request with `Last-Event-ID` or `?after=`.
        client: client of the store.
        run_id: id of the run; an unknown one is status 404.
        texts: whether the text so far of open steps is sent, its last 4,096 characters.
        content: whether prompts, texts, notes and outputs are sent.
        heartbeat_s: interval of comments that keep the connection open.

    Raises:
        LoopAlreadyRunning: the client is a `RunClient` and would block the loop.

    Example:
        ```python
        from flujo_actors.protocols.sse import sse_response

        async def events(request, run_id: str):
            return sse_response(request, AsyncRunClient("sqlite:///runs.db"), run_id)
        ```
    """
    events = sse_events(request, client, run_id, texts=texts, content=content)
    exists = functools.partial(_client_of(client).get, run_id)
    return _RunEvents(events, exists, ping=heartbeat_s)


async def sse_events(
    request: Request | None,
    client: Client,
    run_id: str,
    *,
    after: int = 0,
    texts: bool = True,
    content: bool = True,
) -> AsyncIterator[SseEvent]:
    """Yield the events of a run as dicts: `event`, `data`, `id`.

    It begins after the record that the request names, or after `after`. Raise `RunNotFound` for an unknown run.

    Args:
        request: request of the client, for `Last-Event-ID`.
        client: client of the store.
        run_id: id of the run.
        after: number of the record before the first one.
        texts: whether to send the live text of open steps.
        content: whether to send inputs and outputs.
    """
    seen = after if request is None else _seen_by(request)
    stream = RunEvents(client=_client_of(client), run_id=run_id, seen=seen, texts=texts and content, content=content)
    async for event in stream.all():
        yield event


def _client_of(given: Client) -> RunClient:
    if isinstance(given, RunClient):
        return given
    return given._client if isinstance(given, AsyncRunClient) else RunClient(given)


def _seen_by(request: Request) -> int:
    named = request.headers.get("last-event-id") or request.query_params.get("after") or ""
    return int(named) if named.isdecimal() and len(named) < 16 else 0


@attrs.define(kw_only=True, eq=False)
class RunEvents:
    """Events of one run for one reader; see the module's rules."""

    client: RunClient
    run_id: str
    seen: int = 0
    texts: bool = True
    content: bool = True
    _asked: set[str] = attrs.field(factory=set)

    async def all(self) -> AsyncIterator[SseEvent]:
        """Yield all events until the run has ended."""
        watch = self.client.watch(self.run_id, after=self.seen, texts=self.texts)
        last: int | None = None
        try:
            while (batch := await watch.next_batch()) is not None:
                for event in await self._batch(batch, watch):
                    yield event
                last = batch[-1].seq if batch else last
                async for event in self._texts(watch):
                    yield event
        finally:
            watch.close()
        yield await self._ended(last)

    async def _batch(self, batch: list[RecordSummary], watch: RunWatch) -> list[SseEvent]:
        is_over = watch.run is not None and has_ended(watch.run.status)
        events = [self._record(record) for record in batch if not (is_over and _is_end(record, batch))]
        questions = [] if watch.run is None or not watch.run.pauses else await self._questions()
        paused = len(events) - 1 if events and events[-1]["event"] == "paused" else len(events)
        return [*events[:paused], *questions, *events[paused:]]

    def _record(self, record: RecordSummary) -> SseEvent:
        if record.kind == "ended" and record.status == "paused":
            return {"event": "paused", "id": record.seq, "data": {"status": "paused", "state": "waiting"}}
        facts = record._asdict()
        note = {"note": redacted_value(record.note)} if self.content else {"note": ""}
        return {"event": "record", "id": record.seq, "data": {**facts, **note}}

    async def _questions(self) -> list[SseEvent]:
        """Return the open questions that this reader has not got yet."""
        opened = await _in_thread(self.client.questions, run_id=self.run_id, order="oldest")
        new = [each for each in opened if each.state_token not in self._asked]
        self._asked.update(each.state_token for each in new)
        return [{"event": "question", "data": self._question(each)} for each in new]

    def _question(self, question: Question) -> Mapping[str, object]:
        data = question_data(question)
        if not self.content:
            tool = None if question.tool is None else {"name": question.tool.name}
            return {**data, "message": "", "metadata": {}, "tool": tool}
        return {**data, "message": redacted_value(question.message), "metadata": redacted_value(data["metadata"])}

    async def _texts(self, watch: RunWatch) -> AsyncIterator[SseEvent]:
        for path, text in watch.new_texts().items() if self.texts else ():
            yield {"event": "text", "data": {"path": path, "text": redacted_value(text)}}
            await anyio.sleep(TEXT_S)

    async def _ended(self, last: int | None) -> SseEvent:
        info = await _in_thread(self.client.get, self.run_id)
        data: dict[str, object] = {"status": info.status, "state": info.state}
        if self.content and info.status == "completed":
            state = await _in_thread(self.client.state, self.run_id)
            data["output"] = redacted_value(json.loads(to_json(state.output, plain=True)))
        return {"event": "ended", "id": self.seen if last is None else last, "data": data}


def _is_end(record: RecordSummary, batch: list[RecordSummary]) -> bool:
    """Return whether a record is the end that the event `ended` reports."""
    return record is batch[-1] and record.kind == "ended" and record.status != "paused"


async def _in_thread(call: Callable[..., T], /, *given: object, **named: object) -> T:
    return await anyio.to_thread.run_sync(functools.partial(call, *given, **named), abandon_on_cancel=True)


class _RunEvents(EventSourceResponse):
    """Event stream that begins once the run was found (rule 5)."""

    def __init__(self, events: AsyncIterator[SseEvent], exists: Callable[[], object], *, ping: float) -> None:
        self._exists = exists
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(_as_text(events), ping=ping, headers=headers, sep="\n")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _in_thread(self._exists)
        except RunNotFound as error:
            await JSONResponse({"detail": str(error)}, status_code=404)(scope, receive, send)
            return
        await super().__call__(scope, receive, send)


async def _as_text(events: AsyncIterator[SseEvent]) -> AsyncIterator[ServerSentEvent]:
    async for event in events:
        number = event.get("id")
        yield ServerSentEvent(
            event=event["event"],
            id=None if number is None else str(number),
            data=json.dumps(event["data"], separators=(",", ":")),
        )
