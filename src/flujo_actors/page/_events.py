"""Server-sent events of a run or of the list.

Rules:

1. History and live are one: rows in the order of their seq, after the last one that the reader has seen.
2. A slow client does not block other clients: each reads the shared watch at its own pace.
3. Rows are rendered for each reader: visibility depends on the page's store, its `content` and known secrets.
4. The stream of a run ends with `end` when the run has ended.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import attrs
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from .._core.labels import LabelFilter
from .._core.outcomes import RunId
from .._core.records.records import RunQuery, StoredRun
from .._core.views.record_summaries import RecordSummary
from .._durable.watch_poller import RunWatch
from ..errors import FlujoError
from ..stores._store_port import Store
from ._browser_json import json_text
from ._record_view import Hide, rows_of

PING_S = 15
LIST_S = 1.0
TEXT_S = 0.05
"""Minimum interval of text events; later text is batched."""
_LISTED = 50

RunFacts: TypeAlias = Callable[[StoredRun], dict[str, object]]


def run_events(store: Store, run_id: RunId, after: int, *, hide: Hide, standing: RunFacts) -> Response:
    """Return the event stream of one run."""
    return _stream(_of_run(store, run_id, after, hide, standing))


def list_events(listing: Listing) -> Response:
    """Stream of changes of the list."""
    return _stream(_of_list(listing))


def _stream(events: AsyncIterator[ServerSentEvent]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return EventSourceResponse(events, ping=PING_S, headers=headers, sep="\n")


async def _of_run(
    store: Store, run_id: RunId, after: int, hide: Hide, standing: RunFacts
) -> AsyncIterator[ServerSentEvent]:
    watch = RunWatch(store, run_id, after=after, texts=True)
    sent: dict[str, Any] | None = None
    try:
        while (batch := await watch.next_batch()) is not None:
            now = (
                None
                if watch.run is None
                else await anyio.to_thread.run_sync(standing, watch.run, abandon_on_cancel=True)
            )
            if batch:
                yield _records(batch, hide)
            if now is not None and now != sent:
                sent = now
                yield _event("run", now)
            for path, tail in watch.new_texts().items():
                yield _event("text", {"path": path, "tail": hide(tail)})
                await anyio.sleep(TEXT_S)
        yield _event("end", {})
    except FlujoError as error:
        yield _event("problem", {"error": str(error)})
    finally:
        watch.close()


async def _of_list(listing: Listing) -> AsyncIterator[ServerSentEvent]:
    seen: tuple[object, ...] | None = None  # the first event covers changes between the page's load and this stream
    while True:
        now = await anyio.to_thread.run_sync(listing.now)
        if now != seen:
            seen = now
            yield _event("runs", {})
        await anyio.sleep(LIST_S)


def _event(name: str, data: object) -> ServerSentEvent:
    return ServerSentEvent(event=name, data=json_text(data))


def _records(batch: Sequence[RecordSummary], hide: Hide) -> ServerSentEvent:
    return ServerSentEvent(event="records", id=str(batch[-1].seq), data=json_text(rows_of(batch, hide)))


@attrs.define(eq=False)
class Listing:
    """Latest runs of a store, queried once a second for all."""

    store: Store
    labels: LabelFilter = ()
    seen: tuple[object, ...] = ()
    at: float = 0.0

    def now(self) -> tuple[object, ...]:
        """Return the facts that change the list. Blocks."""
        if time.monotonic() - self.at >= LIST_S * 0.8:
            found = self.store.find(RunQuery(limit=_LISTED, order="created", labels=self.labels))
            self.seen = tuple((run.run_id, run.status, run.leased, run.updated_at, len(run.pauses)) for run in found)
            self.at = time.monotonic()
        return self.seen
