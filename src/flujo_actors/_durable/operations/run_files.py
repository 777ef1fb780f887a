"""Run files: stored runs as JSON lines, in bounded memory.

Rules:

1. Lines are ASCII JSON with sorted keys and without spaces: a header, then per run a `run` line, its `record` lines,
   its open `pause` lines and its remote steps as runs with a `parent`; last the counts and the SHA-256 of all before.
2. Times are whole microseconds, so an export of an imported run has the same bytes in every store. Leases, workers,
   reservations and statistics are not exported.
3. A run is exported as its row describes it: records that are appended meanwhile are left out.
4. A file is read completely before anything is written: a cut, changed or newer file changes no store.
5. A run and its remote steps are imported in one transaction. An interrupted import is repeated with `"skip"`.
6. Nothing is imported, decoded or executed because a file names it: bodies are stored as texts.
7. A file of one run (`.flujo.jsonl`) is UTF-8, and its bodies are JSON objects. Its header names the run and has its
   row; then one line per record (`RecordLines`), each remote step with a `run` line before, and the number of records.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Literal, TypeAlias, cast, get_args

import attrs

from ..._core.outcomes import RunId
from ..._core.records.records import PLAIN_VERSION, RECORD_VERSION, OpenPause, Record, StoredRun
from ...errors import CorruptRecord, DeclarationError
from ...stores import _record_rows as record_rows
from ...stores._memory_store import MemoryStore
from ...stores._store_port import Store
from ...telemetry._redaction.redactor import redacted_value
from ..forks import pause_of_fork, record_of_fork
from ..remote_result_refs import renamed_ids, renamed_record
from ..watch_poller import required
from .run_file_reader import FORMAT, TIMES, RecordGap, RecordLines, RunFileReader, RunGroup, time_name

SUFFIX = ".flujo.jsonl"
"""Suffix of files of one run."""

IfExists: TypeAlias = Literal["raise", "skip"]

RunFile: TypeAlias = "str | os.PathLike[str] | IO[bytes]"
"""Path, or an open binary file."""

_Change: TypeAlias = Callable[[object], object]

_MOST_RECORDS = 64
_MOST_CHARACTERS = 1_000_000
"""Size of a page of records: doubled up to the first bound, 1 beyond the second."""


@attrs.frozen(kw_only=True)
class ExportReport:
    """Result of an export; as a path, the written file."""

    runs: int
    """Number of runs, without remote steps."""
    records: int
    """Number of exported records."""
    bytes: int
    """Length of the file."""
    sha256: str
    """Checksum in the last line: of all lines before it."""
    path: str | None = None
    """Path of the file, if it was opened here."""

    def __fspath__(self) -> str:
        if self.path is None:
            raise TypeError("this export was written to an open file, which has no path")
        return self.path

    def __str__(self) -> str:
        return self.path if self.path is not None else repr(self)


@attrs.frozen(kw_only=True)
class ImportReport:
    """Result of an import."""

    runs: int
    """Number of imported runs, without remote steps."""
    skipped: int
    """Number of runs that existed."""
    run_ids: tuple[RunId, ...] = attrs.field(default=(), repr=False)
    """Imported runs, in the order of the file."""


# --- Export -------------------------------------------------------------------------------------------------------


def export_runs(
    store: Store, run_ids: Iterable[RunId], file: RunFile, *, redact: bool = False, content: bool = True
) -> ExportReport:
    """Write runs to a file in order of creation. Blocks."""
    required(store, "read_page", subject="an export")
    lines = _RunLines(store, _changes(redact, content))
    if hasattr(file, "write"):
        return _written(lines, cast("IO[bytes]", file), run_ids, redacted=redact, content=content)
    path = os.fspath(file)
    with _replacing(path) as out:
        report = _written(lines, out, run_ids, redacted=redact, content=content)
    return attrs.evolve(report, path=path)


def _changes(redact: bool, content: bool) -> _Change | None:
    """Return the change of bodies and messages; None to keep them."""
    if not content:
        return without_content
    return redacted_value if redact else None


@contextlib.contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    """Yield a file that replaces the path once it is durable.

    A link stays a link, and a private file stays private.
    """
    target = os.path.realpath(path)
    part = f"{target}.{os.getpid()}.part"
    try:
        with open(part, "wb") as out:
            if os.path.exists(target):
                shutil.copymode(target, part)
            yield out
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, target)
    except OSError as error:
        raise DeclarationError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(part)


def _written(
    lines: _RunLines, out: IO[bytes], run_ids: Iterable[RunId], *, redacted: bool, content: bool
) -> ExportReport:
    header = {"flujo_export": FORMAT, "record_format": RECORD_VERSION, "redacted": redacted or not content}
    digest, size = hashlib.sha256(), 0
    for line in map(_line, itertools.chain([header if content else {**header, "content": False}], lines.of(run_ids))):
        out.write(line)
        digest.update(line)
        size += len(line)
    end = _line({"end": {"runs": lines.runs, "records": lines.records}, "sha256": digest.hexdigest()})
    out.write(end)
    return ExportReport(runs=lines.tops, records=lines.records, bytes=size + len(end), sha256=digest.hexdigest())


_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def _line(data: object) -> bytes:
    return f"{_encode(data)}\n".encode("ascii")


class _RunLines:
    """Lines of runs, with their number."""

    def __init__(self, store: Store, change: _Change | None) -> None:
        self._store, self._change = store, change
        self.tops = self.runs = self.records = 0

    def of(self, run_ids: Iterable[RunId]) -> Iterator[object]:
        for run_id in run_ids:
            self.tops += 1
            yield from self._of_run(self._store.get(run_id))

    def _of_run(self, run: StoredRun) -> Iterator[object]:
        self.runs += 1
        yield {"run": {**run_data(run), "cancel": self._changed(run.cancel)}}
        for record in self._records_of(run):
            self.records += 1
            yield {"record": self._record_data(run, record)}
        for pause in (*run.pauses, *run.waits):
            yield {"pause": self._pause_data(pause)}
        for child in sorted(self._children_of(run), key=_age):
            yield from self._of_run(child)

    def _children_of(self, run: StoredRun) -> list[StoredRun]:
        if not hasattr(self._store, "children"):
            return []
        return self._store.standing(self._store.children(run.run_id))

    def _records_of(self, run: StoredRun) -> Iterator[Record]:
        """Yield the records that the row counts, in pages."""
        after, size, gap = 0, 1, RecordGap()
        while after < run.records:
            page = self._store.read_page(run.run_id, after=after, limit=min(size, run.records - after))
            if not page:
                raise record_rows.corrupt(run.run_id, after + 1, "it is missing")
            for record in page:
                gap.pass_over(record)
                yield record
            after = page[-1].seq
            short = sum(len(record.body) for record in page) < _MOST_CHARACTERS
            size = min(2 * size, _MOST_RECORDS) if short else 1
        if gap.missing is not None:
            raise record_rows.corrupt(run.run_id, gap.missing, "it is missing")

    def _record_data(self, run: StoredRun, record: Record) -> dict[str, Any]:
        return {
            "seq": record.seq,
            "kind": record.kind,
            "path": record.path,
            "at_us": _us(run.created_at if record.at is None else record.at),
            "body": self._body(record.body),
        }

    def _pause_data(self, pause: OpenPause) -> dict[str, object]:
        return {
            "path": pause.path,
            "token": pause.token,
            "message": self._changed(pause.message),
            "body": self._body(pause.body),
            "due_us": None if pause.due_at is None else _us(pause.due_at),
            "asked_us": None if pause.asked_at is None else _us(pause.asked_at),
        }

    def _changed(self, text: str | None) -> object:
        return text if self._change is None or text is None else self._change(text)

    def _body(self, body: str) -> Any:
        if self._change is None:
            return body
        changed = self._change(json.loads(body))
        return json.dumps(changed, ensure_ascii=False, separators=(",", ":"))


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _age(run: StoredRun) -> tuple[int, str]:
    """Return the order of runs in a file: creation, then id."""
    return _us(run.created_at), run.run_id


def by_creation(runs: Iterable[StoredRun]) -> list[RunId]:
    """Return the ids of runs in the order of a file."""
    return [RunId(run_id) for _, run_id in sorted(map(_age, runs))]


_AS_THEY_ARE = ("pipeline", "fingerprint", "status", "queue", "parent", "retries", "epoch", "expired", "tokens")


def run_data(run: StoredRun) -> dict[str, object]:
    """Return the row of a run as JSON data."""
    times = {time_name(name): _time_data(getattr(run, name)) for name in TIMES}
    kept = {name: getattr(run, name) for name in _AS_THEY_ARE}
    kept["labels"] = dict(run.labels)
    starts = {"wake_us": _time_data(run.wake_at)} if run.status == "sleeping" else {}
    facts = {"cost_usd": run.cost_usd, "cancel": run.cancel, "records": run.records}
    return {"id": run.run_id, **kept, **times, **starts, **facts}


def _time_data(seconds: float | None) -> int | None:
    return None if seconds is None else _us(seconds)


# --- File of one run ----------------------------------------------------------------------------------------------


def export_run(store: Store, run_id: RunId, path: str, *, redact: bool) -> str:
    """Write one run to a file; return its path. Blocks."""
    required(store, "read_page", subject="an export")
    lines, digest = _SingleRunLines(store, _changes(redact, content=True)), hashlib.sha256()
    with _replacing(path) as out:
        for line in map(_utf8_line, lines.all(run_id, redacted=redact)):
            out.write(line)
            digest.update(line)
        out.write(_utf8_line({"end": lines.records, "sha256": digest.hexdigest()}))
    return path


class _SingleRunLines(_RunLines):
    """Lines of a file of one run."""

    def all(self, run_id: RunId, *, redacted: bool) -> Iterator[object]:
        run = self._store.get(run_id)
        facts = {"flujo_run": FORMAT, "run_id": run_id, "pipeline": run.pipeline, "records": run.records}
        about = {"library": version(), "record_format": RECORD_VERSION, "redacted": redacted}
        form = {"v": PLAIN_VERSION, "kinds": RecordLines.KINDS}
        yield {**facts, **about, **form, "run": self._row(run)}
        yield from self._inside(run)

    def _inside(self, run: StoredRun) -> Iterator[object]:
        lines = RecordLines(_us(run.created_at))
        for record in self._records_of(run):
            self.records += 1
            yield lines.packed(**self._record_data(run, record))
        for child in sorted(self._children_of(run), key=_age):
            yield {"run": self._row(child)}
            yield from self._inside(child)

    def _row(self, run: StoredRun) -> dict[str, object]:
        pauses = [self._pause_data(pause) for pause in (*run.pauses, *run.waits)]
        return {**run_data(run), "cancel": self._changed(run.cancel), "pauses": pauses}

    def _body(self, body: str) -> Any:
        data = json.loads(body)
        if self._change is None:
            return data
        changed: Any = self._change(data)
        return {**changed, "token": data["token"]} if "token" in data else changed  # that of a question is no secret


_encode_utf8 = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_encode_ascii = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode


def _utf8_line(data: object) -> bytes:
    """Return a line in UTF-8; lone surrogates are escaped."""
    try:
        return f"{_encode_utf8(data)}\n".encode()
    except UnicodeEncodeError:
        return f"{_encode_ascii(data)}\n".encode("ascii")


def version() -> str:
    """Return the version of the library, if it is installed."""
    try:
        return importlib.metadata.version("flujo-actors")
    except importlib.metadata.PackageNotFoundError:
        return ""


def open_run_file(file: RunFile, *, max_bytes: int = 0) -> tuple[Store, RunId, bool]:
    """Return a store with a file's only run, and its id. Blocks.

    The last part is whether the file is redacted.
    """
    with _opened(file) as source:
        reader = RunFileReader(source, max_bytes, name=single_name(file))
        try:
            group = _only(reader.groups(), None)
        except DeclarationError as error:
            raise CorruptRecord(str(error)) from error
        store = MemoryStore()
        store.put((run, list(records)) for run, records in _runs(source, group))
    return store, group.run_id, reader.redacted


def single_name(file: object) -> str | None:
    """Return the name of a file of one run."""
    name = os.path.basename(os.fspath(file)) if isinstance(file, str | os.PathLike) else ""
    return str(name) if str(name).endswith(SUFFIX) else None


# --- Content ------------------------------------------------------------------------------------------------------


_PLAIN_PARTS = frozenset(
    {
        "v",
        "status",
        "usage",
        "number",
        "mode",
        "from_start",
        "name",
        "latency_s",
        "attempts",
        "token_counts",
        "cost_usd",
        "total_tokens",
        "total_cost_usd",
        "worked",
        "token",
        "fingerprint",
        "child",
        "timeout",
    }
)
"""Parts of bodies that are no content: names, numbers and states."""

_NESTED = frozenset({"success", "failure", "step_result"})


def without_content(data: object) -> object:
    """Return a body without its content: each part by type and size."""
    if not isinstance(data, dict):
        return _size_of(data)
    return {name: _without_content(name, part) for name, part in data.items()}


def _without_content(name: str, part: object) -> object:
    if name in _NESTED and isinstance(part, dict):
        return without_content(part)
    return part if name in _PLAIN_PARTS or isinstance(part, bool) else _size_of(part)


def _size_of(part: object) -> dict[str, object]:
    kinds: dict[type, str] = {dict: "object", list: "array", str: "text", type(None): "null"}
    return {"type": kinds.get(type(part), "number"), "size": len(part if isinstance(part, str) else json.dumps(part))}


# --- Import -------------------------------------------------------------------------------------------------------


def import_runs(
    store: Store,
    file: RunFile,
    *,
    if_exists: IfExists = "raise",
    only: bool = False,
    new_id: RunId | None = None,
    max_bytes: int = 0,
    max_records: int = 0,
) -> ImportReport:
    """Create the runs of a file, each in one transaction. Blocks.

    With `only`, the file must have one run, which may get a new id. `max_bytes` and `max_records` bound the file; 0 is
    no bound.
    """
    required(store, "put", subject="an import")
    if if_exists not in get_args(IfExists):
        raise DeclarationError(f"import_runs: if_exists must be 'raise' or 'skip', not {if_exists!r}")
    with _opened(file) as source:
        groups = RunFileReader(source, max_bytes, max_records, name=single_name(file)).groups()
        if only:
            groups = [_only(groups, new_id)]
        there = _existing(store, groups)
        if there and if_exists == "raise":
            raise record_rows.exists(next(iter(there)))
        new = [group for group in groups if there.isdisjoint(group.run_ids)]
        for group in new:
            store.put(_runs(source, group))
    return ImportReport(runs=len(new), skipped=len(groups) - len(new), run_ids=tuple(group.run_id for group in new))


def _existing(store: Store, groups: Iterable[RunGroup]) -> set[RunId]:
    ids = [run_id for group in groups for run_id in group.run_ids]
    found: set[RunId] = set()
    for start in range(0, len(ids), 500):
        found.update(store.look(ids[start : start + 500]))
    return found


def _only(groups: Sequence[RunGroup], new_id: RunId | None) -> RunGroup:
    """Return a file's only run, under another id if given."""
    if len(groups) != 1:
        raise DeclarationError(f"the file has {len(groups)} runs, not one: use import_runs")
    if new_id is None:
        return groups[0]
    renamed = renamed_ids(groups[0].run_ids, new_id)
    return attrs.evolve(groups[0], run_id=new_id, run_ids=tuple(renamed.values()), renamed=renamed)


@contextlib.contextmanager
def _opened(file: RunFile) -> Iterator[IO[bytes]]:
    """Yield a file that can be read twice."""
    if not hasattr(file, "read"):
        try:
            source: IO[bytes] = open(file, "rb")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise DeclarationError(f"{os.fspath(file)} cannot be read: {error.strerror or error}") from error
        with source:
            yield source
        return
    given = cast("IO[bytes]", file)
    if given.seekable():
        yield given
        return
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(given, copy)
        copy.seek(0)
        yield copy


def _runs(source: IO[bytes], group: RunGroup) -> Iterator[tuple[StoredRun, Iterable[Record]]]:
    """Yield the runs of a group, under its new ids."""
    for run, records in RunFileReader(source).runs(group):
        yield _renamed(run, records, group) if group.renamed else (run, records)


def _renamed(run: StoredRun, records: Iterable[Record], group: RunGroup) -> tuple[StoredRun, Iterator[Record]]:
    """Return a run under another id; tokens name the root run."""
    renamed, root = group.renamed, group.run_id
    pauses = [pause_of_fork(pause, root) for pause in (*run.pauses, *run.waits)]
    parent = None if run.parent is None else renamed[run.parent]
    own = attrs.evolve(run, run_id=renamed[run.run_id], parent=parent, **record_rows.questions_and_waits(pauses))
    return own, (renamed_record(record_of_fork(record, root), renamed) for record in records)
