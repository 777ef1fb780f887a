"""`SqliteRetriever`: passages in a file, by words or by vectors.

Rules:

1. Words are searched with FTS5, which is part of SQLite; nothing has to be installed.
2. Vectors are read once and compared exactly, by numpy: no extension has to be loaded, which most Pythons cannot do.
3. With both, relevance is the mean of words and meaning. Ranks are not fused, since a fused rank is no relevance.
4. Added passages are durable when the call returns. Another process sees them with its next search.
5. A connection is closed by `close()`, by a failed opening, or when the retriever or the process ends. A connection of
   a parent process is never closed: its locks are the parent's.

Sections:

- Tables of a collection in SQLite: passages with indexed columns, and their words.
- Vectors in memory, searched exactly with numpy, faster than an index.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import attrs

from ..._core.records.assembled import RetrievalResult
from ..._dsl.retrieval_collections import Collection, collection_name, filterable
from ...errors import DeclarationError, RetrievalError
from .embedding_retriever import EmbeddingRetriever
from .passages import Corpus, Passage, allowed_values, is_storable, words_of

# --- Tables of a collection in SQLite -----------------------------------------------------------------------------
# The words are indexed as `words_of` returns them, so that a query never has to be FTS5 syntax, and the index's
# document
# counts refer to the same words as the relevance.


_COLUMN_TYPES: Mapping[type, str] = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER"}
_MOST_WORDS = 100
"""Maximum number of searched words, rarest first: FTS5 limits depth."""

_MOST_AT_ONCE = 500
"""Maximum number of rows per statement."""


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


class SqliteTables:
    """The statements of one collection."""

    def __init__(self, collection: type[Collection]) -> None:
        name = collection_name(collection)
        self._name, self._fields = name, filterable(collection)
        self.passage, self.words = quoted(f"{name}_passage"), quoted(f"{name}_words")
        self.vocabulary = quoted(f"{name}_vocabulary")
        self._columns = [quoted(field) for field in self._fields]

    # --- making them ---

    def create(self, db: sqlite3.Connection) -> None:
        """Create missing tables; raise `RetrievalError` for a conflicting one."""
        columns = "".join(f", {quoted(field)} {_COLUMN_TYPES[kind]}" for field, kind in self._fields.items())
        db.execute(
            f"CREATE TABLE IF NOT EXISTS {self.passage} (_number INTEGER PRIMARY KEY, _id TEXT NOT NULL UNIQUE, "
            f"_body TEXT NOT NULL, _length INTEGER NOT NULL, _vector BLOB{columns})"
        )
        db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {self.words} USING fts5(words, tokenize = 'unicode61')")
        db.execute(f"CREATE VIRTUAL TABLE IF NOT EXISTS {self.vocabulary} USING fts5vocab({self.words}, 'row')")
        for field in self._fields:
            index = quoted(f"{self._name}_by_{field}")
            db.execute(f"CREATE INDEX IF NOT EXISTS {index} ON {self.passage} ({quoted(field)})")
        self._check_fields(db)

    def _check_fields(self, db: sqlite3.Connection) -> None:
        have = {row[1] for row in db.execute(f"PRAGMA table_info({self.passage})") if not row[1].startswith("_")}
        if have != set(self._fields):
            raise RetrievalError(
                f"the passages of {self._name!r} were stored with the fields {sorted(have)}, and now it has "
                f"{sorted(self._fields)}: store them anew, in another file or under another name"
            )

    # --- writing ---

    def put(self, db: sqlite3.Connection, passages: Iterable[tuple[Passage, bytes | None]]) -> None:
        """Store passages, each in place of the one with its id."""
        columns = "".join(f", {column}" for column in self._columns)
        marks = ", ?" * len(self._columns)
        for passage, vector in passages:
            self.drop(db, passage.id)
            words = words_of(passage.text)
            values = (passage.id, passage.text, len(words), vector, *map(passage.fields.get, self._fields))
            added = db.execute(
                f"INSERT INTO {self.passage} (_id, _body, _length, _vector{columns}) VALUES (?, ?, ?, ?{marks})", values
            )
            db.execute(f"INSERT INTO {self.words} (rowid, words) VALUES (?, ?)", (added.lastrowid, " ".join(words)))

    def drop(self, db: sqlite3.Connection, id: str) -> bool:
        """Delete a passage; whether there was one."""
        if not is_storable(id, nul=True):
            return False
        row = db.execute(f"SELECT _number FROM {self.passage} WHERE _id = ?", (id,)).fetchone()
        if row is None:
            return False
        db.execute(f"DELETE FROM {self.words} WHERE rowid = ?", row)
        db.execute(f"DELETE FROM {self.passage} WHERE _number = ?", row)
        return True

    # --- reading ---

    def size(self, db: sqlite3.Connection) -> tuple[int, float]:
        """Return the number of passages, and their average number of words."""
        count, mean = db.execute(f"SELECT count(*), avg(_length) FROM {self.passage}").fetchone()
        return count, mean or 0.0

    def vectors(self, db: sqlite3.Connection) -> list[tuple[int, bytes]]:
        """Return every stored vector, with the number of its row."""
        return db.execute(f"SELECT _number, _vector FROM {self.passage} WHERE _vector IS NOT NULL").fetchall()

    def holding(self, db: sqlite3.Connection, words: Iterable[str]) -> dict[str, int]:
        """Return the number of passages hold each of these words."""
        sql = f"SELECT doc FROM {self.vocabulary} WHERE term = ?"
        found = ((word, db.execute(sql, (word,)).fetchone()) for word in words)
        return {word: 0 if row is None else row[0] for word, row in found}

    def worded(
        self, db: sqlite3.Connection, holding: Mapping[str, int], filters: Mapping[str, Any], limit: int
    ) -> dict[int, Passage]:
        """Return the passages with most of these words, by row number."""
        held = sorted((count, word) for word, count in holding.items() if count)[:_MOST_WORDS]
        if not held:
            return {}
        where, values = self._where(filters)
        rows = db.execute(
            f"SELECT {self._row} FROM {self.words} JOIN {self.passage} ON _number = {self.words}.rowid "
            f"WHERE {self.words} MATCH ?{where} ORDER BY {self.words}.rank LIMIT ?",
            (" OR ".join(f'"{word}"' for _, word in held), *values, limit),
        )
        return dict(map(self._passage, rows))

    def numbers(self, db: sqlite3.Connection, filters: Mapping[str, Any]) -> list[int] | None:
        """Return the rows that match all filters; `None` means all rows."""
        if not filters:
            return None
        where, values = self._where(filters)
        return [row[0] for row in db.execute(f"SELECT _number FROM {self.passage} WHERE 1{where}", values)]

    def rows(self, db: sqlite3.Connection, numbers: Iterable[int]) -> dict[int, Passage]:
        """Some passages, by the number of their row."""
        wanted = list(numbers)
        found: dict[int, Passage] = {}
        for start in range(0, len(wanted), _MOST_AT_ONCE):
            some = wanted[start : start + _MOST_AT_ONCE]
            sql = f"SELECT {self._row} FROM {self.passage} WHERE _number IN ({', '.join('?' * len(some))})"
            found |= dict(map(self._passage, db.execute(sql, some)))
        return found

    def _where(self, filters: Mapping[str, Any]) -> tuple[str, list[Any]]:
        sql, values = "", []
        for field, wanted in filters.items():
            allowed = allowed_values(wanted, nul=True)
            sql += f" AND {self.passage}.{quoted(field)} IN ({', '.join('?' * len(allowed))})"
            values += allowed
        return sql, values

    @property
    def _row(self) -> str:
        return ", ".join(["_number", "_id", "_body", *(f"{self.passage}.{column}" for column in self._columns)])

    def _passage(self, row: Sequence[Any]) -> tuple[int, Passage]:
        number, name, body, *values = row
        fields = {
            field: bool(value) if kind is bool else value
            for (field, kind), value in zip(self._fields.items(), values, strict=True)
            if value is not None
        }
        return number, Passage(id=name, text=body, fields=fields)


# --- Vectors in memory --------------------------------------------------------------------------------------------


MISSING_NUMPY = (
    "searching by meaning in SQLite needs numpy: install flujo-actors[retrieval], or leave the embedder away, and "
    "search by words"
)


def need_numpy() -> ModuleType:
    """Return numpy, or raise an error that names the extra."""
    try:
        import numpy  # an extra, needed only for embedders
    except ImportError:
        raise DeclarationError(MISSING_NUMPY) from None
    return numpy


def packed(vector: Sequence[float]) -> bytes:
    """Return the stored form of a vector: normalized or zero, 32-bit floats."""
    numpy = need_numpy()
    found = numpy.nan_to_num(numpy.asarray(vector, dtype=numpy.float32))
    length = float(numpy.linalg.norm(found))
    unit: bytes = (found / length if length else found).astype("<f4").tobytes()
    return unit


class Matrix:
    """Stored vectors of a collection with their row numbers."""

    def __init__(self, rows: Sequence[tuple[int, bytes]]) -> None:
        numpy = self._numpy = need_numpy()
        self.numbers = numpy.array([number for number, _ in rows], dtype=numpy.int64)
        sizes = {len(vector) for _, vector in rows}
        if len(sizes) > 1:
            raise RetrievalError(f"vectors of several lengths are stored ({sorted(size // 4 for size in sizes)})")
        self.dimensions = next(iter(sizes), 0) // 4
        joined = b"".join(vector for _, vector in rows)
        self._vectors = numpy.frombuffer(joined, dtype="<f4").reshape(-1, max(1, self.dimensions))

    def check(self, vector: bytes, collection: str) -> None:
        """Refuse a vector of another length than the stored ones."""
        if self.dimensions and len(vector) != 4 * self.dimensions:
            raise RetrievalError(
                f"the passages of {collection!r} were embedded with {self.dimensions} dimensions, and the query with "
                f"{len(vector) // 4}: use the embedder that they were added with, or add them again"
            )

    def compared(self, vector: bytes) -> Compared:
        """Return all of them compared with this one."""
        numpy = self._numpy
        found = numpy.frombuffer(vector, dtype="<f4")
        cosines = self._vectors @ found if self.dimensions else numpy.zeros(0, dtype="<f4")
        return Compared(numpy, self.numbers, cosines)


class Compared:
    """Similarity of every stored vector to a query: 0 to 1."""

    def __init__(self, numpy: ModuleType, numbers: Any, cosines: Any) -> None:
        self._numpy, self._numbers, self._cosines = numpy, numbers, cosines

    def best(self, count: int, among: Sequence[int] | None) -> dict[int, float]:
        """Return the most similar rows, of all or among some."""
        numpy = self._numpy
        places = numpy.arange(len(self._numbers)) if among is None else self._places(among)
        cosines = self._cosines[places]
        if len(cosines) > count:
            places = places[numpy.argpartition(-cosines, count)[:count]]
        return self._similarities(places)

    def of(self, rows: Sequence[int]) -> dict[int, float]:
        """Return the similarity of these rows, where they have vectors."""
        return self._similarities(self._places(rows))

    def _places(self, rows: Sequence[int]) -> Any:
        numpy = self._numpy
        return numpy.flatnonzero(numpy.isin(self._numbers, numpy.asarray(rows, dtype=numpy.int64)))

    def _similarities(self, places: Any) -> dict[int, float]:
        pairs = zip(self._numbers[places].tolist(), self._cosines[places].tolist(), strict=True)
        return {number: min(1.0, max(0.0, cosine)) for number, cosine in pairs}


# --- `SqliteRetriever`: passages in a file ------------------------------------------------------------------------


_BUSY_S = 30
"""Timeout of a writer that waits for another one."""


@attrs.frozen(kw_only=True)
class _Known:
    """Cached table facts between two searches without a write."""

    version: tuple[int, int]
    passages: int
    mean_length: float
    matrix: Matrix | None


class SqliteRetriever(EmbeddingRetriever[bytes]):
    """Thread-safe passages of one collection in an SQLite file (module rules).

    Args:
        path: database file.
        collection: collection whose fields the passages have.
        embedder: embedder of pydantic-ai, a model or its name; without one, words are compared.

    Example:
        ```python
        class Notes(Collection):
            topic: str

        notes = SqliteRetriever("notes.db", Notes)  # embedder="openai:text-embedding-3-small" searches by meaning
        notes.add("Sencha brews at 75 degrees.", id="n1", topic="tea")
        ```
    """

    def __init__(self, path: str | os.PathLike[str], collection: type[Collection], embedder: object = None) -> None:
        super().__init__(collection, embedder)
        if self.embedder is not None:
            need_numpy()
        self._path = os.fspath(path).removeprefix("sqlite:///")
        self._tables = SqliteTables(self.collection)
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._opened_by = 0
        self._closer: weakref.finalize[[sqlite3.Connection, int], SqliteRetriever] | None = None
        self._writes = 0
        self._known: _Known | None = None

    # --- filling ---

    def remove(self, id: str) -> bool:
        """Drop a passage; whether there was one.

        Args:
            id: identity of the passage.
        """
        with self._writing() as db:
            return self._tables.drop(db, id)

    def _put(self, passages: list[Passage]) -> None:
        vectors: list[bytes | None] = [None] * len(passages)
        if self.embedder is not None:
            vectors = [packed(vector) for vector in self._vectors([passage.text for passage in passages])]
        with self._writing() as db:
            self._tables.put(db, zip(passages, vectors, strict=True))

    # --- searching ---

    def _written(self, vector: list[float]) -> bytes:
        return packed(vector)

    def _found(
        self, query: str, vector: bytes | None, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> list[RetrievalResult]:
        words = words_of(query)
        with self._lock:
            db, known = self._open(), self._up_to_date()
            holding = self._tables.holding(db, set(words))
            wide = max(50, 5 * top_k)
            found = self._tables.worded(db, holding, filters, wide)
            meant = {} if vector is None else self._meant(known, vector, found, filters, wide)
            found |= self._tables.rows(db, meant.keys() - found.keys())
        corpus = Corpus(passages=known.passages, mean_length=known.mean_length, holding=holding.__getitem__)
        relevance = corpus.relevance_to(words)
        scored = []
        for number, passage in found.items():
            counts = Counter(words_of(passage.text))
            score = relevance.of(counts, counts.total())
            scored.append(passage.found(score if vector is None else (score + meant.get(number, 0.0)) / 2))
        relevant = [each for each in scored if each.score > 0 and each.score >= min_relevance]
        return sorted(relevant, key=lambda each: -each.score)[:top_k]

    def _meant(
        self, known: _Known, vector: bytes, found: Mapping[int, Passage], filters: Mapping[str, Any], count: int
    ) -> dict[int, float]:
        """Return the similarity of nearest passages and of word matches."""
        if known.matrix is None:
            return {}
        known.matrix.check(vector, collection_name(self.collection))
        compared = known.matrix.compared(vector)
        return compared.best(count, self._tables.numbers(self._open(), filters)) | compared.of(list(found))

    # --- the file ---

    def _up_to_date(self) -> _Known:
        db = self._open()
        version = (db.execute("PRAGMA data_version").fetchone()[0], self._writes)
        if self._known is None or self._known.version != version:
            count, mean = self._tables.size(db)
            matrix = None if self.embedder is None else Matrix(self._tables.vectors(db))
            self._known = _Known(version=version, passages=count, mean_length=mean, matrix=matrix)
        return self._known

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            db = self._open()
            db.execute("BEGIN IMMEDIATE")
            with db:
                yield db
            self._writes += 1

    def _open(self) -> sqlite3.Connection:
        if self._db is None or self._opened_by != os.getpid():  # a connection does not survive a fork
            self._disconnect()
            self._db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._opened_by, self._known = os.getpid(), None
            self._closer = weakref.finalize(self, _close, self._db, self._opened_by)
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
                self._tables.create(self._db)
            except (sqlite3.Error, DeclarationError, RetrievalError):
                self._disconnect()
                raise
        return self._db

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            self._disconnect()

    def _disconnect(self) -> None:
        if self._closer is not None:
            self._closer()
        self._db = self._closer = None

    def __len__(self) -> int:
        with self._lock:
            return self._up_to_date().passages

    def __repr__(self) -> str:
        return f"SqliteRetriever({self._path!r}, {collection_name(self.collection)!r})"


_INHERITED: list[sqlite3.Connection] = []
"""Connections of a parent process; the collector must not close them (rule 5)."""


def _close(db: sqlite3.Connection, owner: int) -> None:
    """Close a connection, in the process that made it."""
    if owner == os.getpid():
        db.close()
    else:
        _INHERITED.append(db)
