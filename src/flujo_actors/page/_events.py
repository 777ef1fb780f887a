"""Server-sent events: what happens in a run, or in the list, for as long as somebody looks.

Rules:

1. History and live are one: rows in the order of their seq, from the last one that the reader has seen.
2. Who is slow holds up nobody: every reader takes what is new from the shared watch at its own pace.
3. What is sent to many readers is made once.
4. The stream of a run ends with `end` when the run is over.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import anyio
import anyio.to_thread
import attrs
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.responses import Response

from .._core.light_records import LightRecord
from .._core.outcomes import RunId
from .._core.records import RunQuery, StoredRun
from .._durable.watches import RunWatch
from ..errors import FlujoError
from ..stores._port import Store
from ._json import json_text
from ._rows import Hide, rows_of

PING_S = 15
LIST_S = 1.0
TEXT_S = 0.05
"""How long a viewer rests after each text: what is written meanwhile comes with the next one."""
_KEPT = 64
_LISTED = 50

Standing = Callable[[StoredRun], dict[str, object]]


def run_events(store: Store, run_id: RunId, after: int, *, hide: Hide, standing: Standing) -> Response:
    """What happens in one run."""
    return _stream(_of_run(store, run_id, after, hide, standing))


def list_events(store: Store) -> Response:
    """That something in the list has changed."""
    return _stream(_of_list(store))


def _stream(events: AsyncIterator[ServerSentEvent]) -> Response:
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return EventSourceResponse(events, ping=PING_S, headers=headers, sep="\n")


async def _of_run(
    store: Store, run_id: RunId, after: int, hide: Hide, standing: Standing
) -> AsyncIterator[ServerSentEvent]:
    watch = RunWatch(store, run_id, after=after, texts=True)
    told: dict[str, Any] | None = None
    try:
        while (batch := await watch.next_batch()) is not None:
            if batch:
                yield _records(store, run_id, batch, hide)
            now = None if watch.run is None else standing(watch.run)
            if now is not None and now != told:
                told = now
                yield _event("run", now)
            for path, tail in watch.new_texts().items():
                yield _event("text", {"path": path, "tail": hide(tail)})
                await anyio.sleep(TEXT_S)
        yield _event("end", {})
    except FlujoError as error:
        yield _event("problem", {"error": str(error)})
    finally:
        watch.close()


async def _of_list(store: Store) -> AsyncIterator[ServerSentEvent]:
    listing = _listings.of(store)
    seen = await anyio.to_thread.run_sync(listing.now)
    while True:
        await anyio.sleep(LIST_S)
        now = await anyio.to_thread.run_sync(listing.now)
        if now != seen:
            seen = now
            yield _event("runs", {})


def _event(name: str, data: object) -> ServerSentEvent:
    return ServerSentEvent(event=name, data=json_text(data))


def _records(store: Store, run_id: RunId, batch: Sequence[LightRecord], hide: Hide) -> ServerSentEvent:
    key = (id(store), run_id, batch[0].seq, batch[-1].seq)
    data = _made.get(key)
    if data is None:
        data = json_text(rows_of(batch, hide))
        _made.put(key, data)
    return ServerSentEvent(event="records", id=str(batch[-1].seq), data=data)


class _Made:
    """What was made last, for those who need the same."""

    def __init__(self) -> None:
        self._texts: OrderedDict[object, str] = OrderedDict()

    def get(self, key: object) -> str | None:
        """What was made for this key, if it is still there."""
        return self._texts.get(key)

    def put(self, key: object, text: str) -> None:
        """Keep it for a while."""
        self._texts[key] = text
        while len(self._texts) > _KEPT:
            self._texts.popitem(last=False)


_made = _Made()


@attrs.define(eq=False)
class _Listing:
    """The latest runs of a store, asked for once a second however many look."""

    store: Store
    seen: tuple[object, ...] = ()
    at: float = 0.0

    def now(self) -> tuple[object, ...]:
        """What makes a difference to the list. Blocks."""
        if time.monotonic() - self.at >= LIST_S * 0.8:
            found = self.store.find(RunQuery(limit=_LISTED))
            self.seen = tuple((run.run_id, run.status, run.leased, run.updated_at, len(run.pauses)) for run in found)
            self.at = time.monotonic()
        return self.seen


class _Listings:
    """The listings of this process, by store."""

    def __init__(self) -> None:
        self._by_store: OrderedDict[int, _Listing] = OrderedDict()

    def of(self, store: Store) -> _Listing:
        """The listing of a store."""
        listing = self._by_store.setdefault(id(store), _Listing(store))
        while len(self._by_store) > _KEPT:
            self._by_store.popitem(last=False)
        return listing


_listings = _Listings()
