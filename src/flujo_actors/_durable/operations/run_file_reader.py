"""Reader of run files, which checks every line first.

A file is read twice: completely for its checksum and its structure, then run by run for the import. Errors name the
line. Bodies are texts; nothing is decoded beyond JSON.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, cast, get_args

import attrs

from ..._core.labels import Labels, checked_labels
from ..._core.outcomes import RunId
from ..._core.policies.approval_policy import addressed, asked_in
from ..._core.records import record_bodies
from ..._core.records.records import (
    PLAIN_VERSION,
    RECORD_VERSION,
    OpenPause,
    Record,
    RecordKind,
    StoredRun,
    StoredStatus,
)
from ..._core.step_paths import StepPath
from ..._core.validators import is_number
from ...errors import CorruptRecord, DeclarationError, StoreVersionError
from ...stores._record_rows import questions_and_waits

FORMAT = 1
"""Version of run files."""

_LARGEST = 1 << 53
"""Bound of the numbers of a file: exact in every database."""


_MOST_SHARED = 200
"""Characters that a path takes from the one before: bounds the memory of a small file."""

TIMES = ("created_at", "updated_at", "started_at", "ended_at", "worked_s")
"""Times of a run, in seconds."""


@attrs.frozen(kw_only=True)
class RunGroup:
    """A run with its remote steps, in a file."""

    run_id: RunId
    offset: int
    line: int
    run_ids: tuple[RunId, ...]
    """The run and its remote steps."""
    renamed: Mapping[RunId, RunId] = attrs.field(factory=dict)
    """Ids of the file, with those of an import under another id."""


@attrs.define
class RecordGap:
    """Missing record of a sequence, unless a `compacted` one follows."""

    missing: int | None = None
    _last: int = 0

    def pass_over(self, record: Record) -> None:
        """Note the next record; `ValueError` unless its number is larger."""
        if record.seq <= self._last:
            raise ValueError(f"a record after {self._last} is expected here, not {record.seq}")
        if record.kind == "compacted":
            self.missing = None
        elif record.seq != self._last + 1 and self.missing is None:
            self.missing = self._last + 1
        self._last = record.seq


class RecordLines:
    """Records of one run as short lines of a file, and back.

    A line is `[kind, shared, rest, after, body]`: the number of a kind, the characters of the path that the record
    before has too, the others, the microseconds since it, and the body without its usual version. A number follows if
    it is not the next one. Bodies of 70 bytes are common, and names of fields would double them.
    """

    KINDS: tuple[str, ...] = get_args(RecordKind)

    def __init__(self, created_us: int, kinds: Sequence[str] = KINDS, version: int = PLAIN_VERSION) -> None:
        self._kinds, self._version = kinds, version
        self._seq, self._path, self._at_us = 0, "", created_us

    def packed(self, *, seq: int, kind: str, path: str, at_us: int, body: Mapping[str, object]) -> list[object]:
        """Return the line of the next record."""
        pairs = zip(path[:_MOST_SHARED], self._path, strict=False)
        shared = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        known = next(iter(body), None) == "v" and body["v"] == self._version
        short = {name: part for name, part in body.items() if name != "v"} if known else body
        line = [self._kinds.index(kind), shared, path[shared:], at_us - self._at_us, short]
        follows = seq == self._seq + 1
        self._seq, self._path, self._at_us = seq, path, at_us
        return line if follows else [*line, seq]

    def unpacked(self, line: Sequence[Any]) -> dict[str, object]:
        """Return the data of the next record; `ValueError` names a wrong part."""
        if len(line) not in (5, 6):
            raise ValueError(f"a record has five or six parts, not {len(line)}")
        kind, shared, rest, after, body, *seq = line
        if _whole(kind, "kind") >= len(self._kinds):
            raise ValueError(f"there is no kind {kind!r:.40}")
        if _whole(shared, "shared") > min(len(self._path), _MOST_SHARED):
            raise ValueError(f"the path before has no {shared!r:.40} characters")
        if isinstance(after, bool) or not isinstance(after, int):
            raise ValueError(f"after must be a whole number, not {after!r:.40}")
        if not isinstance(body, dict):
            raise ValueError("its body is no object")
        self._seq = _whole(seq[0], "seq") if seq else self._seq + 1
        self._path, self._at_us = self._path[:shared] + _text(rest, "path"), self._at_us + after
        whole = body if "v" in body else {"v": self._version, **body}
        return {
            "seq": self._seq,
            "kind": self._kinds[kind],
            "path": self._path,
            "at_us": self._at_us,
            "body": _body_text(whole),
        }


def time_name(name: str) -> str:
    return f"{name.rpartition('_')[0]}_us"


class RunFileReader:
    """Lines of an open run file, checked as they are read."""

    def __init__(self, source: IO[bytes], max_bytes: int = 0, max_records: int = 0, *, name: str | None = None) -> None:
        self._source, self._max_bytes, self._max_records = source, max_bytes, max_records
        self._file = name
        """Name of the file, if it has one run."""
        self.redacted = False
        self._is_single = False
        """Whether the header is that of a file of one run."""
        self._number, self._end = 0, source.tell() if source.seekable() else 0
        self._digest = hashlib.sha256()
        self._form: tuple[Any, Any] = (RecordLines.KINDS, PLAIN_VERSION)
        """Kinds and usual version of bodies, by the header."""
        self._lines = RecordLines(0)
        self._name = ""
        """Kind of the line that was read last."""
        self._data: Mapping[str, object] = {}

    def groups(self) -> list[RunGroup]:
        """Return the runs of a valid file, or raise `DeclarationError`."""
        self._read_header()
        counts, found, seen = {"runs": 0, "records": 0}, [], set[RunId]()
        if not self._is_single:
            self._advance()
        while self._name == "run":
            group = self._group(seen, counts)
            found.append(group)
        self._check_end(counts)
        return found

    def runs(self, group: RunGroup) -> Iterator[tuple[StoredRun, Iterator[Record]]]:
        """Yield the runs of a group with their records, in order."""
        self._source.seek(group.offset)
        self._number = group.line - 1
        self._advance()
        for _ in group.run_ids:
            data, position = self._data, (self._source.tell(), self._number)
            pauses = [*_pauses_in(data), *self._pauses()]
            self._source.seek(position[0])
            self._number = position[1]
            self._begin(data)
            self._advance()
            run = attrs.evolve(_stored_run(data), **questions_and_waits(pauses))
            yield run, self._records()
            while self._name in ("record", "pause"):
                self._advance()

    def _pauses(self) -> Iterator[OpenPause]:
        """Yield the open pauses of the present run, behind its records."""
        self._advance()
        while self._name == "record":
            self._advance()
        while self._name == "pause":
            yield _pause(self._data)
            self._advance()

    def _records(self) -> Iterator[Record]:
        while self._name == "record":
            yield _record(self._data)
            self._advance()

    def _read_header(self) -> None:
        header = self._line()
        if not isinstance(header, dict) or not header.keys() & {"flujo_export", "flujo_run"}:
            raise self._wrong("this is no header of a run file")
        self._is_single = "flujo_run" in header
        formats = header["flujo_run" if self._is_single else "flujo_export"], header.get("record_format", 1)
        for found, known, what in zip(formats, (FORMAT, RECORD_VERSION), ("format", "record format"), strict=True):
            with self._checking():
                _whole(found, what)
            if found > known:
                raise StoreVersionError(f"the file has {what} {found}, this process reads up to {known}: upgrade it")
        self.redacted = header.get("redacted") is not False
        if self._is_single:
            with self._checking():
                _check_form(header)
            self._take(header)
        elif self.redacted:
            raise DeclarationError("a redacted export cannot be imported")

    def _group(self, seen: set[RunId], counts: dict[str, int]) -> RunGroup:
        offset, number, own = self._end, self._number, list[RunId]()
        while self._name == "run" and (not own or self._data.get("parent") in own):
            run = self._checked_run(self._data, top=not own)
            if run.run_id in seen:
                raise self._wrong(f"run {run.run_id!r} is in the file twice")
            seen.add(run.run_id)
            own.append(run.run_id)
            counts["runs"] += 1
            counts["records"] += self._check_records(run)
        return RunGroup(run_id=own[0], offset=offset, line=number, run_ids=tuple(own))

    def _checked_run(self, data: Mapping[str, object], *, top: bool) -> StoredRun:
        with self._checking():
            run = _stored_run(data)
            if top and run.parent is not None:
                raise ValueError(f"the run of its parent {run.parent!r} is not before it")
            _pauses_in(data)
            return run

    def _check_records(self, run: StoredRun) -> int:
        """Check a run's records and pauses; return the number of records."""
        self._advance()
        count, last, gap = 0, 0, RecordGap()
        while self._name == "record":
            with self._checking():
                record = _record(self._data)
                gap.pass_over(record)
                _check_record(record)
            count, last = count + 1, record.seq
            if self._max_records and count > self._max_records:
                raise self._wrong(f"the file has more than {self._max_records:,} records")
            self._advance()
        if last != run.records or gap.missing is not None:
            raise self._wrong(f"record {gap.missing or last + 1} of run {run.run_id!r} is missing")
        while self._name == "pause":
            with self._checking():
                _pause(self._data)
            self._advance()
        return count

    def _check_end(self, counts: dict[str, int]) -> None:
        data = self._data
        if self._name != "end":
            raise self._wrong("a run, a record, a pause or the end is expected here")
        wanted = counts["records"] if self._is_single else counts
        if data.get("end") != wanted:
            raise self._wrong(f"its counts are {data.get('end')}, not {wanted}")
        if data.get("sha256") != self._digest.hexdigest():
            changed = "the checksum does not match"
            raise self._wrong(changed) if self._file else DeclarationError(changed)
        if self._source.read(1):
            self._number += 1
            raise self._wrong("nothing may follow the end")

    def _advance(self) -> None:
        """Read the next line: its name and its data."""
        self._take(self._line())

    def _take(self, data: Any) -> None:
        """Take the data of a line; a record may be the line."""
        with self._checking():
            if isinstance(data, list):
                data = {"record": self._lines.unpacked(data)}
            elif isinstance(data, dict) and "seq" in data and "body" in data:  # the first form of such lines
                data = {"record": {**data, "body": _body_text(data["body"])}}
        names = [name for name in ("run", "record", "pause", "end") if isinstance(data, dict) and name in data]
        if len(names) != 1:
            raise self._wrong("a run, a record, a pause or the end is expected here")
        self._name = names[0]
        self._data = data if names[0] == "end" else data[names[0]]
        if not isinstance(self._data, dict):
            raise self._wrong(f"its {self._name} is no object")
        if self._name == "run":
            self._form = (data.get("kinds", self._form[0]), data.get("v", self._form[1]))
            self._begin(self._data)

    def _begin(self, run: Mapping[str, object]) -> None:
        """Start the records of a run."""
        created_us = run.get("created_us")
        self._lines = RecordLines(created_us if isinstance(created_us, int) else 0, *self._form)

    def _line(self) -> Any:
        """Return the next line as JSON data; the last is not hashed."""
        self._end = self._source.tell()
        self._number += 1
        line = self._source.readline(self._max_bytes + 1 if self._max_bytes else -1)
        if self._max_bytes and self._end + len(line) > self._max_bytes:
            raise self._wrong(f"the file is longer than {self._max_bytes:,} bytes")
        if not isinstance(line, bytes):
            raise DeclarationError("a run file is read as bytes: open it in binary mode")
        if not line.endswith(b"\n"):
            raise self._wrong("the file ends here; its last line is missing")
        with self._checking():
            data = json.loads(line, parse_constant=_refuse)
        if not (isinstance(data, dict) and "end" in data):
            self._digest.update(line)
        return data

    @contextlib.contextmanager
    def _checking(self) -> Iterator[None]:
        """Name the line of data that is refused in the block."""
        try:
            yield
        except (ValueError, TypeError, KeyError, RecursionError, CorruptRecord, DeclarationError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise self._wrong(why) from error

    def _wrong(self, why: str) -> DeclarationError:
        whose = "" if self._file is None else f" of {self._file}"
        return DeclarationError(f"line {self._number}{whose}: {why}")


def _body_text(body: object) -> object:
    """Return the text of a body that is written as an object."""
    if isinstance(body, str):
        return body
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _check_form(header: Mapping[str, object]) -> None:
    """Refuse a header whose parts are wrong, or contradict its run."""
    run = header.get("run")
    named = {"run_id": "id", "pipeline": "pipeline", "records": "records"}
    for name, of_run in named.items():
        if isinstance(run, dict) and header[name] != run.get(of_run):
            raise ValueError(f"its {name} is {header[name]!r:.40}, that of its run {run.get(of_run)!r:.40}")
    kinds = header.get("kinds", [])
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise ValueError("kinds must be a list of texts")
    _whole(header.get("v", PLAIN_VERSION), "v")


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _stored_run(data: Mapping[str, object]) -> StoredRun:
    """Return the run of a line; `ValueError` names a wrong part."""
    if data["status"] not in get_args(StoredStatus):
        raise ValueError(f"there is no status {data['status']!r}")
    times = {name: _time(data, name, optional=name in ("started_at", "ended_at")) for name in TIMES}
    numbers = {name: _whole(data[name], name) for name in ("retries", "epoch", "tokens", "records")}
    texts = {name: _text_or_none(data[name], name) for name in ("queue", "parent", "cancel", "fingerprint")}
    facts: Any = {**times, **numbers, **texts, "expired": data["expired"] is True, "status": data["status"]}
    return StoredRun(
        **facts,
        run_id=RunId(_text(data["id"], "id")),
        pipeline=_text(data["pipeline"], "pipeline"),
        labels=_labels(data["labels"]),
        wake_at=_time(data, "wake_at", optional=True) if "wake_us" in data else None,
        cost_usd=_cost(data["cost_usd"]),
        leased=False,
    )


def _labels(data: object) -> Labels:
    if not isinstance(data, dict):
        raise ValueError("labels is no object")
    return checked_labels(data)


def _record(data: Mapping[str, object]) -> Record:
    return Record(
        kind=cast(RecordKind, _text(data["kind"], "kind")),
        path=StepPath(_text(data["path"], "path")),
        body=_text(data["body"], "body"),
        seq=_whole(data["seq"], "seq"),
        at=_whole(data["at_us"], "at_us") / 1e6,
    )


def _pauses_in(run: Mapping[str, object]) -> list[OpenPause]:
    """Return the open pauses in a file of one run."""
    found = run.get("pauses", [])
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ValueError("pauses must be a list of objects")
    return [_pause(each) for each in found]


def _pause(data: Mapping[str, object]) -> OpenPause:
    path, body = StepPath(_text(data["path"], "path")), _text(_body_text(data["body"]), "body")
    spec = asked_in(record_bodies.read_body(body, where="a pause"))
    return OpenPause(
        path=path,
        token=_text(data["token"], "token"),
        message=_text(data["message"], "message"),
        body=body,
        due_at=_time(data, "due_at", optional=True),
        asked_at=_time(data, "asked_at", optional=True),
        **addressed(spec, path),
    )


def _check_record(record: Record) -> None:
    if record.kind not in get_args(RecordKind):
        raise ValueError(f"its kind {record.kind!r} is not known")
    record_bodies.read_body(record.body, where=f"record {record.seq}")


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
        raise ValueError(f"{name} must be a whole number from 0 to 2^53, not {value!r:.40}")
    return value


def _time(data: Mapping[str, object], name: str, *, optional: bool) -> float | None:
    value = data[time_name(name)]
    return None if optional and value is None else _whole(value, time_name(name)) / 1e6


def _cost(value: object) -> float:
    if not is_number(value) or value < 0:
        raise ValueError(f"cost_usd must be a number of at least 0, not {value!r:.40}")
    return float(value)


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {value!r:.40}")
    return value


def _text_or_none(value: object, name: str) -> str | None:
    return None if value is None else _text(value, name)
