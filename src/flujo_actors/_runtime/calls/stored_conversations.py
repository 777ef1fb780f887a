"""Conversations of pydantic-ai in a store: records and entries as rows.

Rules:

1. A record has the end of a history, and each entry the one before it. Saving appends entries and replaces the record
   in one transaction: the cost does not depend on the length of the history.
2. A record is replaced only if its revision is the expected one, which the statement compares.
3. Deleting a conversation deletes the entries that no other record's history or branch reaches.
4. A step with `conversation=` reads the history before an attempt. Its new messages are written with its outcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

import anyio.to_thread
import attrs
from outcome import Error
from pydantic import TypeAdapter
from pydantic_ai.messages import ModelMessage

from ..._agents.granular.conversation import run_usage_of
from ..._bridge.user_code_guard import guarded
from ..._core.attempt_results import AttemptFailed
from ..._core.records.records import ConversationRow, ConversationWrite, EntryRow
from ..._core.usage import Usage
from ..._dsl.step_declaration import Step
from ..._durable.store_executor import call_store
from ...errors import DeclarationError
from ...stores._record_rows import SqlConversationRows
from ...stores._store_port import Store
from ..run.messages import AttemptInput
from ..run.run_environment import Run
from ..run.user_functions import failure_of, with_context_copy

try:
    from pydantic_ai.conversation_store import (
        ConversationConflict,
        ConversationEntry,
        ConversationRecord,
        ConversationStore,
    )
except ModuleNotFoundError as error:
    raise DeclarationError(
        "stored conversations need pydantic-ai-slim 2.66 or newer: run `pip install 'pydantic-ai-slim>=2.66'`"
    ) from error

T = TypeVar("T")


class ConversationRows(Protocol):
    """Optional: conversations in a store. Every method blocks."""

    def conversation(self, conversation_id: str) -> str | None:
        """Return the body of a record, or None."""

    def list_conversations(self, *, scope: str | None, limit: int | None) -> list[str]:
        """Return the bodies of records, latest change first."""

    def write_conversation(self, row: ConversationRow, entries: Sequence[EntryRow], *, expected: str | None) -> bool:
        """Replace a record and add entries durably; false after a conflict.

        Also false if its head is no entry.
        """

    def delete_conversation(self, conversation_id: str, *, expected: str) -> bool:
        """Delete a record with its entries; false after a conflict."""

    def history(self, head: str, *, limit: int | None) -> list[str]:
        """Return the last entries up to one, in order; `LookupError`."""


_records: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)
_entries: TypeAdapter[ConversationEntry] = TypeAdapter(ConversationEntry)


def rows_of(store: Any) -> ConversationRows:
    """Return the conversation rows of a store or its database."""
    if hasattr(store, "conversation_rows"):
        rows: ConversationRows = store.conversation_rows()
        return rows
    if not hasattr(store, "conversation_sql"):
        raise DeclarationError(f"store {type(store).__name__} has no 'conversation_rows': conversations needs it")
    return SqlConversationRows(*store.conversation_sql())


class StoredConversations(ConversationStore):
    """Conversations in the rows of a store; see the module's rules."""

    def __init__(self, rows: ConversationRows) -> None:
        self._rows = rows

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        body = await _in_thread(self._rows.conversation, conversation_id)
        return None if body is None else _records.validate_json(body)

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        bodies = await _in_thread(partial(self._rows.list_conversations, scope=scope, limit=limit))
        return [_records.validate_json(body) for body in bodies]

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        entries = [_entry_row(each) for each in new_entries]
        write = partial(self._rows.write_conversation, _row(record), entries, expected=expected_revision)
        if not await _in_thread(write):
            raise ConversationConflict(record.conversation_id)

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        delete = partial(self._rows.delete_conversation, conversation_id, expected=expected_revision)
        if not await _in_thread(delete):
            raise ConversationConflict(conversation_id)

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        [body] = await _in_thread(partial(self._rows.history, entry_id, limit=1))
        return _entries.validate_json(body)

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        if head_id is None or limit == 0:
            return []
        bodies = await _in_thread(partial(self._rows.history, head_id, limit=limit))
        return [_entries.validate_json(body) for body in bodies]


async def _in_thread(call: Callable[..., T], *args: object) -> T:
    return await anyio.to_thread.run_sync(partial(call, *args))


def _row(record: ConversationRecord) -> ConversationRow:
    return ConversationRow(
        id=record.conversation_id,
        scope=record.scope,
        revision=record.revision,
        updated_at=record.updated_at.timestamp(),
        head=record.head_id,
        tips=tuple(record.branches),
        body=_records.dump_json(record).decode(),
    )


def _entry_row(entry: ConversationEntry) -> EntryRow:
    return EntryRow(id=entry.id, parent=entry.parent_id, body=_entries.dump_json(entry).decode())


# --- Conversation of a step ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True, eq=False)
class LoadedConversation:
    """Conversation as a step's attempt found it."""

    id: str
    record: ConversationRecord | None
    """`None` before its first message."""
    messages: list[ModelMessage]

    def written(self, messages: Iterable[ModelMessage], usage: Usage) -> ConversationWrite:
        """Return the write that appends messages to it."""
        before = self.record or ConversationRecord(conversation_id=self.id, head_id=None)
        head, entries = before.head_id, []
        for message in messages:
            entries.append(ConversationEntry(parent_id=head, message=message))
            head = entries[-1].id
        after = ConversationRecord(
            conversation_id=self.id,
            head_id=head,
            usage=before.usage + run_usage_of(usage),
            scope=before.scope,
            forked_from=before.forked_from,
            forked_at=before.forked_at,
            branches=list(before.branches),
        )
        expected = None if self.record is None else self.record.revision
        return ConversationWrite(row=_row(after), entries=tuple(map(_entry_row, entries)), expected=expected)

    def conflict(self) -> ConversationConflict:
        """Return the error of an attempt that lost a write conflict."""
        return ConversationConflict(self.id)


async def conversation_for(run: Run, step: Step, work: AttemptInput) -> LoadedConversation | AttemptFailed:
    """Load the conversation of a step's attempt."""
    name = step.conversation
    if callable(name):
        asked = await with_context_copy(run, name, work.data, work.context, work.scope)
        if isinstance(asked, Error):
            return failure_of(run, asked.error, subject=f"The conversation of step {step.name!r}")
        name = asked.value
    if not isinstance(name, str) or not name:
        error = ValueError(f"step {step.name!r}: conversation must return an id, a text, not {name!r:.100}")
        return AttemptFailed(error=error, feedback=run.redact(str(error)))
    assert run.journal.store is not None  # checked with the declaration
    loaded = await guarded(load_conversation, run.journal.store, name)
    if isinstance(loaded, Error):
        return failure_of(run, loaded.error, subject=f"The conversation of step {step.name!r}")
    work.state.conversation = loaded.value
    return loaded.value


async def load_conversation(store: Store, conversation_id: str) -> LoadedConversation:
    """Return a stored conversation with its whole history."""
    return await call_store(partial(_loaded, rows_of(store), conversation_id))


def _loaded(rows: ConversationRows, conversation_id: str) -> LoadedConversation:
    while True:
        body = rows.conversation(conversation_id)
        if body is None:
            return LoadedConversation(id=conversation_id, record=None, messages=[])
        record = _records.validate_json(body)
        try:
            found = [] if record.head_id is None else rows.history(record.head_id, limit=None)
        except LookupError:
            if rows.conversation(conversation_id) == body:
                raise
            continue  # it was deleted or replaced between both reads
        messages = [_entries.validate_json(each).message for each in found]
        return LoadedConversation(id=conversation_id, record=record, messages=messages)
