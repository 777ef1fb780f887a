"""How a record's body is kept: short ones in the record's row, long ones once each, under their hash."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, cast, get_args

from .._core.light_records import LightRecord, gist_of, light, light_of_body
from .._core.outcomes import RunId
from .._core.paths import StepPath
from .._core.records import Record, RecordKind
from ..errors import CorruptRecord, DeclarationError

BLOB_THRESHOLD = 64 * 1024
"""Bodies of more characters than this are kept as blobs."""

_KINDS = frozenset(get_args(RecordKind))


class Blob(NamedTuple):
    """A long body and the hash it is found by."""

    hash: bytes
    data: bytes


class RecordRow(NamedTuple):
    """A record as a row; `body` is empty if the record has a blob."""

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
    """The blob of a long body; `None` for one that stays in its row."""
    if len(body) <= BLOB_THRESHOLD:
        return None
    data = body.encode("utf-8", "surrogatepass")
    return Blob(hashlib.sha256(data).digest(), data)


def as_row(record: Record, seq: int, blob: Blob | None) -> RecordRow:
    """The row of a record that was given its place."""
    said = gist_of(record)
    gist = None if said is None else storable(said)
    if blob is not None:
        return RecordRow(seq, record.kind, storable(record.path), "", blob.hash, gist=gist)
    return RecordRow(seq, record.kind, storable(record.path), storable(record.body), None, gist=gist)


def as_light(rows: Iterable[Sequence[Any]]) -> list[LightRecord]:
    """The records of rows that have their bodies only where they have no gist."""
    return [_as_light(*row) for row in rows]


def _as_light(
    seq: int, kind: Any, path: str, at: float | None, gist: str | None, body: str | None, data: bytes | None
) -> LightRecord:
    place = StepPath(restored(path))
    if gist is not None:
        return light(seq, kind, place, at, restored(gist))
    text = data.decode("utf-8", "replace") if data else restored(body or "")
    return light_of_body(seq, kind, place, at, text)


def cursor_text(updated_at: float, key: int) -> str:
    """Where a listing, latest change first, goes on after a run."""
    return f"{updated_at!r}/{key}"


def read_cursor(cursor: str) -> tuple[float, int]:
    """What `cursor_text` was given; `DeclarationError` for any other text."""
    updated_at, _, key = cursor.partition("/")
    try:
        return float(updated_at), int(key)
    except ValueError:
        raise DeclarationError(
            f"{shown(cursor)} is no cursor of a listing; pass the `cursor` of the last run you were given"
        ) from None


def as_records(run_id: RunId, rows: Iterable[Sequence[Any]], *, after: int) -> list[Record]:
    """The records of rows; `CorruptRecord` if one is missing, or is not what was written."""
    records = [_as_record(run_id, RecordRow(*row)) for row in rows]
    for expected, record in enumerate(records, max(after, 0) + 1):
        if record.seq != expected:
            raise corrupt(run_id, expected, f"it is missing; the next one is {record.seq}")
    return records


def _as_record(run_id: RunId, row: RecordRow) -> Record:
    if row.kind not in _KINDS:
        raise corrupt(run_id, row.seq, f"its kind {shown(row.kind)} is not known")
    if not isinstance(row.path, str):
        raise corrupt(run_id, row.seq, "its path is not text")
    body = _inline_body(run_id, row) if row.blob is None else _blob_body(run_id, row)
    return Record(
        kind=cast(RecordKind, row.kind),
        path=StepPath(restored(row.path)),
        body=body,
        seq=row.seq,
        at=row.at,
        gist=None if row.gist is None else restored(row.gist),
    )


def corrupt(run_id: RunId, seq: int, why: str) -> CorruptRecord:
    return CorruptRecord(f"record {seq} of run {shown(run_id)} cannot be read: {why}")


def shown(text: object) -> str:
    """A text of any length and content, as an error message shows it."""
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
        raise corrupt(run_id, row.seq, "its blob is not what was written")
    return row.data.decode("utf-8", "surrogatepass")


# --- texts ---------------------------------------------------------------------------------------------------
#
# SQLite refuses lone surrogates and Postgres refuses NUL too. Both are written as the substitute character U+001A
# followed by four hexadecimal digits, and so is U+001A itself; every other text stands for itself.

_UNSTORABLE = re.compile("[\x00\x1a\ud800-\udfff]")
_ESCAPED = re.compile("\x1a([0-9a-f]{4})")


def storable(text: str) -> str:
    """The text in a form that every database takes."""
    if _UNSTORABLE.search(text) is None:
        return text
    return _UNSTORABLE.sub(lambda found: f"\x1a{ord(found[0]):04x}", text)


def restored(stored: str) -> str:
    """The text that `storable` was given."""
    if "\x1a" not in stored:
        return stored
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), stored)
