"""Events and conversations of an in-memory store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs

from .._core.attempt_results import ConversationMoved
from .._core.outcomes import RunId
from .._core.records.records import ConversationRow, ConversationWrite, EntryRow, OpenPause
from .._core.records.sent_events import (
    Accepts,
    EventInfo,
    EventStatus,
    Fate,
    OutgoingEvent,
    Sent,
    data_in,
    refusal_of,
)
from ._memory_runs import MemoryPause, MemoryRun, end_waits


@attrs.define(kw_only=True, eq=False)
class MemoryEvent:
    """An event, and its fate."""

    sent: OutgoingEvent
    info: EventInfo


class MemoryEvents:
    """Events and conversations of an in-memory store."""

    _lock: threading.Lock
    _conversations: MemoryConversationRows
    _wall: Callable[[], float]
    _runs: dict[RunId, MemoryRun]
    _events: dict[tuple[str, str], MemoryEvent]
    """By name and id, in the order of acceptance."""

    def conversation_rows(self) -> MemoryConversationRows:
        """Return the conversations."""
        return self._conversations

    def write_messages(self, write: ConversationWrite | None) -> ConversationMoved | None:
        """Write a conversation's new messages; return a conflict, if any."""
        if write is None or self._conversations.write_conversation(write.row, write.entries, expected=write.expected):
            return None
        return ConversationMoved(write.row.id)

    def send(self, event: OutgoingEvent, accepts: Accepts) -> Sent:
        """Deliver or buffer an event, once for its name and id."""
        with self._lock:
            wall, place = self._wall(), (event.event, event.id)
            before = self._events.get(place)
            if before is not None and before.info.sent_at + before.sent.dedupe_s > wall:
                return Sent(event.id, "duplicate", before.info.delivered_to)
            found = self._receivers(event, wall)
            for run, pause in found:
                accepts(run.run_id, pause.asked)
            for run, pause in found:
                end_waits(run, [pause], event.body, wall)
            self._events.pop(place, None)
            runs = tuple(run.run_id for run, _ in found)
            status: Fate = "delivered" if found or event.to_all else "buffered"
            self._events[place] = MemoryEvent(sent=event, info=_event_info(event, status, runs, wall))
            return Sent(event.id, status, runs)

    def _receivers(self, event: OutgoingEvent, wall: float) -> list[tuple[MemoryRun, MemoryPause]]:
        open_waits = [
            each
            for each in self._open_waits(wall)
            if each[1].asked.event == event.event and each[1].asked.key == event.key
        ]
        return open_waits if event.to_all else open_waits[:1]

    def _open_waits(self, wall: float) -> list[tuple[MemoryRun, MemoryPause]]:
        found = [(run, pause) for run in self._runs.values() for pause in run.pauses]
        waits = [each for each in found if each[1].asked.event is not None and not each[1].answered]
        return sorted((each for each in waits if not each[1].is_over(wall)), key=lambda each: each[1].number)

    def waits(self, *, event: str | None = None, key: str | None = None) -> list[tuple[RunId, OpenPause]]:
        """Return the open waits for events, oldest first."""
        with self._lock:
            found = [(run.run_id, pause.asked) for run, pause in self._open_waits(self._wall())]
        return [each for each in found if event in (None, each[1].event) and key in (None, each[1].key)]

    def events(
        self, *, event: str | None = None, key: str | None = None, status: EventStatus | None = None, limit: int = 100
    ) -> list[EventInfo]:
        """Return stored events, latest first."""
        with self._lock:
            found = [each.info for each in reversed(self._events.values())]
        named = [each for each in found if event in (None, each.event) and key in (None, each.key)]
        return [each for each in named if status in (None, each.status)][:limit]

    def purge(self, *, limit: int = 1000) -> int:
        """Delete events whose time is over; return their number."""
        with self._lock:
            wall = self._wall()
            old = [place for place, each in self._events.items() if each.info.sent_at + each.sent.keep_s <= wall]
            for place in old[:limit]:
                del self._events[place]
            return len(old[:limit])

    def take_buffered(self, run: MemoryRun, pause: OpenPause, wall: float) -> None:
        """Deliver the oldest buffered event to a wait that opens."""
        for each in self._events.values():
            fits = (each.sent.event, each.sent.key, each.info.status) == (pause.event, pause.key, "buffered")
            if not fits or each.info.sent_at + each.sent.retain_s <= wall:
                continue
            reason = refusal_of(each.sent.body, pause.body)
            if reason is None:
                end_waits(run, run.pauses[-1:], each.sent.body, wall)
                each.info = attrs.evolve(each.info, status="delivered", delivered_to=(run.run_id,))
                return
            each.info = attrs.evolve(each.info, status="refused", refused_by=run.run_id, reason=reason)


def _event_info(event: OutgoingEvent, status: EventStatus, runs: tuple[str, ...], wall: float) -> EventInfo:
    return EventInfo(
        id=event.id,
        event=event.event,
        key=event.key,
        status=status,
        sent_at=wall,
        data=data_in(event.body),
        by=event.by,
        delivered_to=runs,
    )


# --- Conversations in memory ---------------------------------------------------------------------------------------


class MemoryConversationRows:
    """Conversations of an in-memory store."""

    def __init__(self) -> None:
        self._rows: dict[str, ConversationRow] = {}
        self._entries: dict[str, EntryRow] = {}
        self._lock = threading.Lock()

    def conversation(self, conversation_id: str) -> str | None:
        with self._lock:
            row = self._rows.get(conversation_id)
            return None if row is None else row.body

    def list_conversations(self, *, scope: str | None, limit: int | None) -> list[str]:
        with self._lock:
            rows = [row for row in self._rows.values() if scope is None or row.scope == scope]
        return [row.body for row in sorted(rows, key=lambda row: row.updated_at, reverse=True)[:limit]]

    def write_conversation(self, row: ConversationRow, entries: Sequence[EntryRow], *, expected: str | None) -> bool:
        with self._lock:
            added = {entry.id: entry for entry in entries}
            missing = row.head is not None and row.head not in self._entries and row.head not in added
            if self._revision(row.id) != expected or missing:
                return False
            self._entries |= added
            self._rows[row.id] = row
            return True

    def delete_conversation(self, conversation_id: str, *, expected: str) -> bool:
        with self._lock:
            if self._revision(conversation_id) != expected:
                return False
            del self._rows[conversation_id]
            kept: set[str] = set()
            for row in self._rows.values():
                for tip in (row.head, *row.tips):
                    while tip is not None and tip not in kept:
                        kept.add(tip)
                        tip = self._entries[tip].parent
            self._entries = {name: entry for name, entry in self._entries.items() if name in kept}
            return True

    def history(self, head: str, *, limit: int | None) -> list[str]:
        found: list[str] = []
        at: str | None = head
        with self._lock:
            while at is not None and (limit is None or len(found) < limit):
                found.append(self._entries[at].body)
                at = self._entries[at].parent
        return found[::-1]

    def _revision(self, conversation_id: str) -> str | None:
        row = self._rows.get(conversation_id)
        return None if row is None else row.revision
