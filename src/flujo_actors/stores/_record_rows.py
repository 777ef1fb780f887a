"""Storage of record bodies: short in the row, long by hash.

Sections:

- Refusal errors, with the same texts in every store.
- Budgets as database rows: plain numbers, and limits as JSON text.
- Conversations as database rows: records, and entries that refer to the one before.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypedDict, cast, get_args

from .._core.attempt_results import ConversationMoved
from .._core.outcomes import RunId
from .._core.policies.rate_limits import RateInfo
from .._core.policies.shared_budgets import BudgetShare, raised_limits
from .._core.quota import Amount, Held
from .._core.records.record_bodies import newer_record
from .._core.records.records import (
    RECORD_VERSION,
    Admission,
    CancelRequest,
    ConversationRow,
    ConversationWrite,
    EntryRow,
    ItemRow,
    Lease,
    MessageNotice,
    OpenPause,
    OutboxMessage,
    OutboxStatus,
    OwnerNotice,
    Record,
    RecordKind,
    StoredStatus,
)
from .._core.records.sent_events import EventInfo, EventStatus, data_in
from .._core.step_paths import StepPath
from .._core.usage import UsageLimits
from .._core.views.record_summaries import RecordSummary, gist_of, light, light_of_body
from ..errors import (
    AlreadyAnswered,
    CorruptRecord,
    Expired,
    LeaseLost,
    NoRewardDue,
    NotPaused,
    NotRetryable,
    RunExists,
    RunLeased,
    RunNotFound,
    SingletonBusy,
    StoreError,
    StoreVersionError,
)

BLOB_THRESHOLD = 64 * 1024
"""Maximum characters of a body in its row; longer are blobs."""

_KINDS = frozenset(get_args(RecordKind))


class Blob(NamedTuple):
    """A long body and the hash it is found by."""

    hash: bytes
    data: bytes


class RecordRow(NamedTuple):
    """Record as a row; `body` is empty with a blob."""

    seq: int
    kind: str
    path: str
    body: str
    blob: bytes | None
    data: bytes | None = None
    """The blob's content, where the row was read."""
    at: float | None = None
    gist: str | None = None


def as_blob(body: str) -> Blob | None:
    """Return a long body's blob, or None for a short one."""
    if len(body) <= BLOB_THRESHOLD:
        return None
    data = body.encode("utf-8", "surrogatepass")
    return Blob(hashlib.sha256(data).digest(), data)


def as_row(record: Record, seq: int, blob: Blob | None) -> RecordRow:
    """Return the row of a record that was given its place."""
    said = gist_of(record)
    gist = None if said is None else storable(said)
    if blob is not None:
        return RecordRow(seq, record.kind, storable(record.path), "", blob.hash, gist=gist)
    return RecordRow(seq, record.kind, storable(record.path), storable(record.body), None, gist=gist)


def starts_at(admission: Admission, wall: float) -> float:
    """Return the time from which an unowned run can be claimed."""
    at = wall + admission.delay_s if admission.delay_s is not None else admission.start_at
    return wall if at is None else max(at, wall)


def event_info(
    id: str,
    event: str,
    key: str,
    status: EventStatus,
    sent_at: float,
    body: str,
    by: str | None,
    delivered: str,
    refused_by: str | None,
    reason: str | None,
) -> EventInfo:
    """Return an event from its row."""
    return EventInfo(
        id=id,
        event=restored(event),
        key=restored(key),
        status=status,
        sent_at=sent_at,
        data=data_in(restored(body)),
        by=by and restored(by),
        delivered_to=tuple(json.loads(delivered)),
        refused_by=refused_by and restored(refused_by),
        reason=reason and restored(reason),
    )


class OpenPauses(TypedDict):
    """Open pauses of a stored run, by the need of a person."""

    pauses: tuple[OpenPause, ...]
    waits: tuple[OpenPause, ...]


def questions_and_waits(pauses: Iterable[OpenPause]) -> OpenPauses:
    """Return the fields of a stored run for its open pauses."""
    found = tuple(pauses)
    return {
        "pauses": tuple(pause for pause in found if pause.wait is None),
        "waits": tuple(pause for pause in found if pause.wait is not None),
    }


def as_light(rows: Iterable[Sequence[Any]]) -> list[RecordSummary]:
    """Return the rows' summaries, loading bodies only without a gist."""
    return [_as_light(*row) for row in rows]


def _as_light(
    seq: int, kind: Any, path: str, at: float | None, gist: str | None, body: str | None, data: bytes | None
) -> RecordSummary:
    place = StepPath(restored(path))
    if gist is not None:
        return light(seq, kind, place, at, restored(gist))
    text = data.decode("utf-8", "replace") if data else restored(body or "")
    return light_of_body(seq, kind, place, at, text)


def as_records(run_id: RunId, rows: Iterable[Sequence[Any]], *, after: int) -> list[Record]:
    """Return the rows' records; raise `CorruptRecord` for a missing one."""
    records = [_as_record(run_id, RecordRow(*row)) for row in rows]
    if records and records[-1].seq != max(after, 0) + len(records):
        _refuse_gaps(run_id, records, max(after, 0))
    return records


def as_page(run_id: RunId, rows: Iterable[Sequence[Any]]) -> list[Record]:
    """Return the rows' records, with their gaps."""
    return [_as_record(run_id, RecordRow(*row)) for row in rows]


def as_item_rows(rows: list[ItemRow], record: Callable[[int], Record]) -> list[ItemRow]:
    """Return the rows inside items; `record` reads one without a body."""
    if all(type(row[3]) is str for row in rows):
        return rows
    return [row if type(row[3]) is str else _item_row(record(row[0])) for row in rows]


def _item_row(record: Record) -> ItemRow:
    return record.seq, record.kind, record.path, record.body, record.at


def readable(run_id: RunId, rows: Iterable[Sequence[Any]]) -> tuple[Record, ...]:
    """Return all records of a run; none if one is damaged."""
    try:
        return tuple(as_records(run_id, rows, after=0))
    except CorruptRecord:
        return ()


def _refuse_gaps(run_id: RunId, records: Sequence[Record], last: int) -> None:
    """Raise `CorruptRecord` for a missing record above every `compacted` one."""
    compacted = max((record.seq for record in records if record.kind == "compacted"), default=0)
    for record in records:
        if record.seq != last + 1 and record.seq > compacted:
            raise corrupt(run_id, last + 1, f"it is missing; the next one is {record.seq}")
        last = record.seq


def _as_record(run_id: RunId, row: RecordRow) -> Record:
    if not isinstance(row.path, str):
        raise corrupt(run_id, row.seq, "its path is not text")
    body = _inline_body(run_id, row) if row.blob is None else _blob_body(run_id, row)
    if row.kind not in _KINDS:
        raise _unknown_kind(run_id, row, body)
    return Record(
        kind=cast(RecordKind, row.kind),
        path=StepPath(restored(row.path)),
        body=body,
        seq=row.seq,
        at=row.at,
        gist=None if row.gist is None else restored(row.gist),
    )


def _unknown_kind(run_id: RunId, row: RecordRow, body: str) -> StoreError:
    """Return the error of an unknown kind of record."""
    version = json.loads(body).get("v")
    if isinstance(version, int) and version > RECORD_VERSION:
        return newer_record(f"record {row.seq} of run {shown(run_id)}", version)
    return corrupt(run_id, row.seq, f"its kind {shown(row.kind)} is not known")


def corrupt(run_id: RunId, seq: int, why: str) -> CorruptRecord:
    return CorruptRecord(f"record {seq} of run {shown(run_id)} cannot be read: {why}")


def shown(text: object) -> str:
    """Return a text of any length and content for an error message."""
    quoted = repr(text)
    return quoted if len(quoted) <= 120 else f"{quoted[:100]}… ({len(quoted)} characters)"


def _inline_body(run_id: RunId, row: RecordRow) -> str:
    if not isinstance(row.body, str):
        raise corrupt(run_id, row.seq, "its body is not text")
    body = restored(row.body)
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise corrupt(run_id, row.seq, f"its body is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise corrupt(run_id, row.seq, "its body is not a JSON object")
    return body


def _blob_body(run_id: RunId, row: RecordRow) -> str:
    if not isinstance(row.data, bytes):
        raise corrupt(run_id, row.seq, "its blob is missing")
    if hashlib.sha256(row.data).digest() != row.blob:
        raise corrupt(run_id, row.seq, "its blob is damaged")
    return row.data.decode("utf-8", "surrogatepass")


# --- texts --------------------------------------------------------------------------------------------------- SQLite
# refuses lone surrogates and Postgres also refuses NUL. Both are written as the substitute character U+001A followed by
# four hexadecimal digits, and so is U+001A itself; every other text is unchanged.

_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def storable(text: str) -> str:
    """Return the text in a form that every database takes."""
    if _UNSTORABLE.search(text) is None:
        return text
    return _UNSTORABLE.sub(lambda found: f"\x1a{ord(found[0]):04x}", text)


def owner_notice(cancel: str | None, steered: int | None) -> OwnerNotice:
    """Return the notices for a run's owner, cancel requests first."""
    if cancel is not None:
        return CancelRequest(reason=restored(cancel))
    assert steered is not None
    return MessageNotice(seq=steered)


def restored(stored: str) -> str:
    """Return the text that `storable` was given."""
    if "\x1a" not in stored:
        return stored
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)


# --- Messages to webhooks -----------------------------------------------------------------------------------------


def outbox_message(
    message_id: str,
    hook: str,
    url: str,
    event: str,
    body: str,
    run_id: str,
    attempts: int,
    status: OutboxStatus,
    created_at: float,
    next_at: float | None,
    error: str | None,
) -> OutboxMessage:
    """Return a message from its row."""
    return OutboxMessage(
        id=message_id,
        hook=hook,
        url=url,
        event=event,
        body=restored(body),
        run_id=restored(run_id),
        attempts=attempts,
        status=status,
        created_at=created_at,
        next_at=next_at if status == "pending" else None,
        error=None if error is None else restored(error),
    )


def settled_status(error: str | None, after_s: float | None) -> OutboxStatus:
    """Return the status of a message after a delivery."""
    if error is None:
        return "delivered"
    return "failed" if after_s is None else "pending"


# --- Refusal errors -----------------------------------------------------------------------------------------------


def other_schema(found: object, needed: int) -> StoreVersionError:
    """Return the error of a schema that this process does not use."""
    newer = isinstance(found, int) and found > needed
    remedy = "upgrade flujo-actors here" if newer else "run `flujo-actors store migrate --store …`"
    return StoreVersionError(f"the store has schema {found}, this process needs {needed}: {remedy}")


def not_found(run_id: RunId) -> RunNotFound:
    return RunNotFound(f"there is no run {shown(run_id)} in this store")


def exists(run_id: RunId) -> RunExists:
    return RunExists(f"run {shown(run_id)} exists already; resume it, or choose another id")


def busy(singleton: str, run_id: RunId) -> SingletonBusy:
    return SingletonBusy(f"the open run {shown(run_id)} has the singleton key {shown(singleton)}", run_id)


def replaced_by(run_id: RunId) -> str:
    """Return the cancel reason of a run that lost its singleton key."""
    return f"replaced by run {run_id}"


def no_record(run_id: RunId, seq: int) -> RunNotFound:
    return RunNotFound(f"run {shown(run_id)} has no record {seq}")


def leased(run_id: RunId, owner: str | None, left_s: float | None) -> RunLeased:
    left = "" if left_s is None else f": {left_s:.1f} s are left"
    error = RunLeased(f"run {shown(run_id)} is held by {shown(owner)}, and its lease has not expired{left}")
    error.owner, error.left_s = owner, left_s
    return error


def key_is_full(run_id: RunId, key: str, per_key: int) -> RunLeased:
    return RunLeased(f"run {shown(run_id)} waits: {per_key} runs of its key {shown(key)} are being executed")


def not_paused(run_id: RunId, path: StepPath) -> NotPaused:
    return NotPaused(f"nothing waits for this answer at {shown(path)} in run {shown(run_id)}")


def already_answered(run_id: RunId, path: StepPath) -> AlreadyAnswered:
    return AlreadyAnswered(f"the pause at {shown(path)} in run {shown(run_id)} has been answered already")


def expired(run_id: RunId, path: StepPath) -> Expired:
    return Expired(f"the answer to {shown(path)} in run {shown(run_id)} comes too late: its time is over")


def not_retryable(run_id: RunId, status: StoredStatus) -> NotRetryable:
    return NotRetryable(f"run {shown(run_id)} is {status}; another caller has retried it already")


def rewarded(run_id: RunId, path: StepPath) -> NoRewardDue:
    return NoRewardDue(f"the reward of {shown(path)} in run {shown(run_id)} was reported already")


def lost(lease: Lease, current: tuple[str | None, int] | None) -> LeaseLost:
    """Return the error of a write under an outdated lease.

    `current` is the run's owner and epoch, `None` if the run is gone.
    """
    return LeaseLost(
        f"epoch {lease.epoch} of run {shown(lease.run_id)} may not be written any more: {_why(lease, current)}"
    )


def _why(lease: Lease, current: tuple[str | None, int] | None) -> str:
    if current is None:
        return "the run is gone"
    owner, epoch = current
    if epoch != lease.epoch:
        return f"it was claimed and is at epoch {epoch}"
    if owner is None:
        return "the lease was released"
    return f"it belongs to {shown(owner)}"


# --- Budgets as database rows -------------------------------------------------------------------------------------


def share_row(share: BudgetShare) -> dict[str, Any]:
    """Return a share as the columns of its row."""
    spent, reserved, largest = share.spent, share.reserved, share.largest
    return {
        "holder": storable(share.holder),
        "version": share.version,
        "tokens": spent.tokens,
        "cost_usd": spent.cost_usd,
        "requests": spent.requests,
        "tool_calls": spent.tool_calls,
        "steps": spent.steps,
        "reserved_tokens": reserved.tokens,
        "reserved_usd": reserved.cost_usd,
        "reserved_requests": reserved.requests,
        "under_way": share.under_way,
        "largest_tokens": None if largest is None else largest.tokens,
        "largest_usd": None if largest is None else largest.cost_usd,
    }


def held_in(row: Sequence[Any]) -> Held:
    """Return the amounts of other holders from the sums over their rows."""
    tokens, cost_usd, requests, tool_calls, steps, *rest = row
    held_tokens, held_usd, held_requests, under_way, largest_tokens, largest_usd = rest
    return Held(
        spent=Amount(
            tokens=tokens, cost_usd=cost_usd, requests=int(requests), tool_calls=int(tool_calls), steps=int(steps)
        ),
        reserved=Amount(tokens=held_tokens, cost_usd=held_usd, requests=int(held_requests)),
        under_way=int(under_way),
        largest=None if largest_tokens is None else Amount(tokens=largest_tokens, cost_usd=largest_usd),
    )


def limits_text(limits: UsageLimits | None) -> str | None:
    """Limits as JSON text."""
    return None if limits is None else json.dumps(limits.data())


def limits_in(text: str | None, raised: str | None = None) -> UsageLimits | None:
    """Return limits from their JSON text, with raised ones."""
    limits = None if text is None else UsageLimits(**json.loads(text))
    return limits if raised is None else raised_limits(limits, json.loads(raised))


def rate_infos(rows: Sequence[Sequence[Any]]) -> list[RateInfo]:
    """Return the resources of each bucket, with the bucket's block."""
    blocked = {name: until for name, resource, _, _, until, _ in rows if not resource and until}
    found = [
        RateInfo(
            name=restored(name),
            resource=resource or "at_once",
            free_at=free_at if resource else None,
            blocked_until=blocked.get(name),
            in_use=in_use,
            refunded=refunded,
        )
        for name, resource, free_at, refunded, _, in_use in rows
    ]
    counted = {each.name for each in found if each.resource == "at_once" and each.in_use}
    plain = [each for each in found if each.in_use or each.resource != "at_once" or each.name not in counted]
    return sorted(plain, key=lambda each: (each.name, each.resource))


# --- Conversations as database rows --------------------------------------------------------------------------------


Ask = Callable[[str, Mapping[str, object]], Sequence[Sequence[Any]]]
"""Executes a statement with named parameters, `{name}` in its text."""

_RECORD = "SELECT body FROM flujo_conversations WHERE id = {id}"

_REVISION = "SELECT revision FROM flujo_conversations WHERE id = {id}"

_LISTED = """
    SELECT body FROM flujo_conversations WHERE CAST({scope} AS TEXT) IS NULL OR scope = {scope}
    ORDER BY updated_at DESC LIMIT {limit}"""

_ADD = """
    INSERT INTO flujo_conversations (id, scope, revision, updated_at, head, tips, body)
    VALUES ({id}, {scope}, {revision}, {updated_at}, {head}, {tips}, {body}) ON CONFLICT (id) DO NOTHING RETURNING id"""

_REPLACE = """
    UPDATE flujo_conversations SET scope = {scope}, revision = {revision}, updated_at = {updated_at}, head = {head},
                                   tips = {tips}, body = {body}
    WHERE id = {id} AND revision = {expected} RETURNING id"""

_ADD_ENTRY = "INSERT INTO flujo_entries (id, parent, body) VALUES ({id}, {parent}, {body})"

_HAS_ENTRY = "SELECT 1 FROM flujo_entries WHERE id = {head}"

_REMOVE = "DELETE FROM flujo_conversations WHERE id = {id} AND revision = {expected} RETURNING head, tips"

_IS_USED = """
    EXISTS (SELECT 1 FROM flujo_conversations WHERE head = e.id)
    OR EXISTS (SELECT 1 FROM flujo_conversations WHERE tips <> '[]' AND tips LIKE '%"' || e.id || '"%')"""

_REMOVE_ENTRIES = f"""
    WITH RECURSIVE gone (id, parent) AS (
        SELECT e.id, e.parent FROM flujo_entries AS e WHERE e.id = {{tip}} AND NOT ({_IS_USED})
          AND NOT EXISTS (SELECT 1 FROM flujo_entries AS c WHERE c.parent = e.id)
        UNION ALL
        SELECT e.id, e.parent FROM flujo_entries AS e JOIN gone AS g ON e.id = g.parent WHERE NOT ({_IS_USED})
          AND NOT EXISTS (SELECT 1 FROM flujo_entries AS c WHERE c.parent = e.id AND c.id <> g.id))
    DELETE FROM flujo_entries WHERE id IN (SELECT id FROM gone)"""
"""Entries up to the first one that another record or entry needs."""

_HISTORY = """
    WITH RECURSIVE line (id, parent, body, place) AS (
        SELECT id, parent, body, 1 FROM flujo_entries WHERE id = {head}
        UNION ALL
        SELECT e.id, e.parent, e.body, place + 1 FROM flujo_entries AS e JOIN line ON e.id = line.parent
        WHERE place < {limit})
    SELECT body, parent FROM line ORDER BY place DESC"""

_ALL = 2**31 - 1
_LONGEST_KEY = 200


class SqlConversationRows:
    """Conversations in a database; `read` and `write` give a function an `Ask`."""

    def __init__(self, read: Callable[[Callable[[Ask], Any]], Any], write: Callable[..., Any]) -> None:
        self._read, self._write = read, write

    def conversation(self, conversation_id: str) -> str | None:
        rows = self._read(lambda ask: ask(_RECORD, {"id": _key(conversation_id)}))
        return next((restored(body) for (body,) in rows), None)

    def list_conversations(self, *, scope: str | None, limit: int | None) -> list[str]:
        wanted = {"scope": scope and storable(scope), "limit": _ALL if limit is None else limit}
        return [restored(body) for (body,) in self._read(lambda ask: ask(_LISTED, wanted))]

    def write_conversation(self, row: ConversationRow, entries: Sequence[EntryRow], *, expected: str | None) -> bool:
        columns = {**_columns(row), "expected": expected}
        try:
            self._write(partial(_write, row=row, entries=entries, columns=columns), alone=False)
        except _OtherRevisionError:
            return False
        return True

    def delete_conversation(self, conversation_id: str, *, expected: str) -> bool:
        try:
            self._write(partial(_delete, key=_key(conversation_id), expected=expected), alone=True)
        except _OtherRevisionError:
            return False
        return True

    def history(self, head: str, *, limit: int | None) -> list[str]:
        most = _ALL if limit is None else limit
        rows = self._read(lambda ask: ask(_HISTORY, {"head": _key(head), "limit": most}))
        if not rows or (rows[0][1] is not None and len(rows) < most):
            raise LookupError(f"entry {head!r} or one before it is not in the store")
        return [restored(body) for body, _ in rows]


class _OtherRevisionError(Exception):
    """A record is not the expected one: nothing is written."""


def _write(ask: Ask, row: ConversationRow, entries: Sequence[EntryRow], columns: dict[str, object]) -> None:
    for entry in entries:
        _add_entry(ask, entry)
    changed = ask(_ADD if columns["expected"] is None else _REPLACE, columns)
    if not changed or (row.head is not None and not ask(_HAS_ENTRY, columns)):
        raise _OtherRevisionError


def moved(ask: Ask, write: ConversationWrite | None) -> ConversationMoved | None:
    """Return the refusal of new messages if another writer was faster."""
    rows = [] if write is None else ask(_REVISION, {"id": _key(write.row.id)})
    if write is None or (rows[0][0] if rows else None) == write.expected:
        return None
    return ConversationMoved(write.row.id)


def add_messages_to(ask: Ask, write: ConversationWrite) -> bool:
    """Write new messages; false, with nothing written, if another writer was faster."""
    columns = {**_columns(write.row), "expected": write.expected}
    if not ask(_ADD if write.expected is None else _REPLACE, columns):
        return False
    for entry in write.entries:
        _add_entry(ask, entry)
    return True


def _add_entry(ask: Ask, entry: EntryRow) -> None:
    parent = entry.parent and _key(entry.parent)
    ask(_ADD_ENTRY, {"id": _key(entry.id), "parent": parent, "body": storable(entry.body)})


def _delete(ask: Ask, key: str, expected: str) -> None:
    rows = ask(_REMOVE, {"id": key, "expected": expected})
    if not rows:
        raise _OtherRevisionError
    [(head, tips)] = rows
    for tip in (*json.loads(tips), *([] if head is None else [head])):
        ask(_REMOVE_ENTRIES, {"tip": tip})


def _columns(row: ConversationRow) -> dict[str, object]:
    return {
        "id": _key(row.id),
        "scope": row.scope and storable(row.scope),
        "revision": row.revision,
        "updated_at": row.updated_at,
        "head": row.head and _key(row.head),
        "tips": json.dumps([_key(tip) for tip in row.tips]),
        "body": storable(row.body),
    }


def _key(name: str) -> str:
    """Return a name as an indexed text of bounded length."""
    short = storable(name)
    if len(short) <= _LONGEST_KEY:
        return short
    return f"sha256:{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"
