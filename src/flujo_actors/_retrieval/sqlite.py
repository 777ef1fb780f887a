"""`SqliteRetriever`: passages in a file, found by their words, and with an embedder by their meaning, too.

Rules:

1. Words are looked for with FTS5, which is part of SQLite; nothing has to be installed.
2. Vectors are read once and compared exactly, by numpy: no extension has to be loaded, which most Pythons cannot do.
3. With both, relevance is the mean of the two: half of it is for the words, half for the meaning. Ranks are not fused,
   since a fused rank is no relevance.
4. What was added is durable when the call returns. Another process sees it with its next search.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs

from .._core.assembled import RetrievalResult
from .._dsl.collections import Collection, collection_name
from .embedding_retriever import EmbeddingRetriever
from .passages import Passage
from .sqlite_tables import Tables
from .vectors import Matrix, need_numpy, packed
from .words import Corpus, words_of

_BUSY_S = 30
"""How long a writer waits for another one."""


@attrs.frozen(kw_only=True)
class _Known:
    """What is kept of the tables between two searches, as long as nobody writes."""

    version: tuple[int, int]
    passages: int
    mean_length: float
    matrix: Matrix | None


class SqliteRetriever(EmbeddingRetriever[bytes]):
    """The passages of one collection in an SQLite file; see the module's rules. To be used from any thread."""

    def __init__(self, path: str | os.PathLike[str], collection: type[Collection], embedder: object = None) -> None:
        super().__init__(collection, embedder)
        if self.embedder is not None:
            need_numpy()
        self._path = os.fspath(path).removeprefix("sqlite:///")
        self._tables = Tables(self.collection)
        self._lock = threading.RLock()
        self._db: sqlite3.Connection | None = None
        self._opened_by = 0
        self._writes = 0
        self._known: _Known | None = None

    # --- filling ---

    def remove(self, id: str) -> bool:
        """Drop a passage; whether there was one."""
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
        """How like the query in meaning the nearest passages are, and those that were found by their words."""
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
            self._db = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            self._opened_by, self._known = os.getpid(), None
            weakref.finalize(self, _close, self._db, self._opened_by)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._tables.create(self._db)
        return self._db

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        with self._lock:
            if self._db is not None:
                _close(self._db, self._opened_by)
            self._db = None

    def __len__(self) -> int:
        with self._lock:
            return self._up_to_date().passages

    def __repr__(self) -> str:
        return f"SqliteRetriever({self._path!r}, {collection_name(self.collection)!r})"


def _close(db: sqlite3.Connection, owner: int) -> None:
    """Close a connection, in the process that made it."""
    if owner == os.getpid():
        db.close()
