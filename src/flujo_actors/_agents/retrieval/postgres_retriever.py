"""`PostgresRetriever`: passages in Postgres, searched by words and with pgvector.

The server may be the one that stores the runs. Rules:

1. Connections are opened on demand, kept for the next search, and dropped when they break.
2. pgvector is used if it is installed in the database; it is never installed from here, which takes a superuser.
3. With an embedder, relevance is the mean of words and meaning.
4. Added passages are durable when the call returns.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..._core.records.assembled import RetrievalResult
from ..._dsl.retrieval_collections import Collection, collection_name
from ...errors import DeclarationError, RetrievalError
from .embedding_retriever import EmbeddingRetriever
from .passages import Passage

if TYPE_CHECKING:
    from psycopg import Connection

    from .postgres_tables import PostgresTables

_IDLE_AT_MOST = 4
"""Maximum number of idle connections."""


class PostgresRetriever(EmbeddingRetriever[str]):
    """Thread-safe passages of one collection in a Postgres schema (module rules).

    Args:
        url: URL of the database.
        collection: collection whose fields the passages have.
        embedder: embedder of pydantic-ai, a model or its name; without one, words are compared.

    Example:
        ```python
        class Notes(Collection):
            topic: str

        notes = PostgresRetriever("postgresql://app@db.example/flujo", Notes)  # connects at the first search
        ```
    """

    def __init__(self, url: str, collection: type[Collection], embedder: object = None) -> None:
        if not isinstance(url, str) or not url.startswith(("postgresql://", "postgres://")):
            raise DeclarationError('PostgresRetriever: url must begin with "postgresql://"')
        super().__init__(collection, embedder)
        self._url = url
        self._idle: list[Connection] = []
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._tables: PostgresTables | None = None
        self._made = False
        weakref.finalize(self, _close_all, self._idle, os.getpid())

    # --- filling ---

    def remove(self, id: str) -> bool:
        """Drop a passage; whether there was one.

        Args:
            id: identity of the passage.
        """
        with self._connected() as db:
            tables = self._known(db)
            return tables.has_table(db) and tables.drop(db, id)

    def _put(self, passages: list[Passage]) -> None:
        if not passages:
            return
        vectors: list[str | None] = [None] * len(passages)
        dimensions = None
        if self.embedder is not None:
            made = self._vectors([_storable(passage.text) for passage in passages])
            vectors, dimensions = [_literal(vector) for vector in made], len(made[0])
        with self._connected() as db:
            tables = self._known(db)
            with db.transaction():
                if not self._made:
                    db.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (collection_name(self.collection),))
                    tables.create(db, dimensions)
                    tables.has_table(db)
                    self._made = True
                tables.put(db, list(zip(map(_stored, passages), vectors, strict=True)))
            if dimensions is not None:
                tables.index_vectors(db, dimensions)

    # --- searching ---

    def _written(self, vector: list[float]) -> str:
        return _literal(vector)

    def _found(
        self, query: str, vector: str | None, top_k: int, min_relevance: float, filters: Mapping[str, Any]
    ) -> list[RetrievalResult]:
        with self._connected() as db:
            tables = self._known(db)
            if not tables.has_table(db):
                return []
            with db.transaction():
                if vector is not None:
                    db.execute("SET LOCAL hnsw.iterative_scan = strict_order")  # a filter must not cost results
                found = tables.found(db, _storable(query), vector, filters, max(50, 5 * top_k))
        relevant = [passage.found(score) for score, passage in found if score > 0 and score >= min_relevance]
        return relevant[:top_k]

    # --- connections ---

    def _known(self, db: Connection) -> PostgresTables:
        if self._tables is None:
            from .postgres_tables import PostgresTables  # loads psycopg, which only this retriever needs

            self._tables = PostgresTables(self.collection, None if self.embedder is None else _home_of_vectors(db))
        return self._tables

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        db = self._acquire()
        try:
            yield db
        finally:
            self._put_back(db)

    def _acquire(self) -> Connection:
        try:
            import psycopg  # an extra, needed only for Postgres
        except ImportError:
            raise DeclarationError("PostgresRetriever needs psycopg: install flujo-actors[postgres]") from None
        with self._lock:
            if self._owner != os.getpid():  # a connection does not survive a fork; the parent's is not ours to close
                self._idle, self._owner = [], os.getpid()
                weakref.finalize(self, _close_all, self._idle, self._owner)
            while self._idle:
                db = self._idle.pop()
                if _answers(db):
                    return db
        # A statement that is not prepared can be sent through a pooler, too.
        return psycopg.connect(self._url, autocommit=True, prepare_threshold=None)

    def _put_back(self, db: Connection) -> None:
        with self._lock:
            if not db.closed and not db.broken and len(self._idle) < _IDLE_AT_MOST and self._owner == os.getpid():
                self._idle.append(db)
                return
        db.close()

    def close(self) -> None:
        """Close the idle connections; the next call opens new ones."""
        with self._lock:
            _close_all(self._idle, self._owner)

    def __len__(self) -> int:
        with self._connected() as db:
            tables = self._known(db)
            return tables.count(db) if tables.has_table(db) else 0


def _close_all(idle: list[Connection], owner: int) -> None:
    """Close connections that wait, in the process that made them."""
    while idle and owner == os.getpid():
        idle.pop().close()


def _home_of_vectors(db: Connection) -> str:
    row = db.execute(
        "SELECT nspname FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace WHERE extname = 'vector'"
    ).fetchone()
    if row is None:
        raise RetrievalError(
            "searching by meaning in Postgres needs pgvector in this database: let a superuser run CREATE EXTENSION "
            "vector there once, or leave the embedder away and search by words"
        )
    return str(row[0])


def _answers(db: Connection) -> bool:
    """Return whether a kept connection still works."""
    import psycopg  # see `_acquire`

    try:
        db.execute("SELECT 1")
    except psycopg.Error:
        db.close()
        return False
    return True


def _stored(passage: Passage) -> Passage:
    text = _storable(passage.text)
    return passage if text == passage.text else Passage(id=passage.id, text=text, fields=passage.fields)


def _storable(text: str) -> str:
    """Return a text without NUL and lone surrogates, which Postgres refuses."""
    return text.replace("\0", "").encode("utf-8", "replace").decode()


def _literal(vector: list[float]) -> str:
    """Return a vector in pgvector's syntax; a non-number becomes 0."""
    return "[" + ",".join(f"{number:.7g}" if number == number else "0" for number in vector) + "]"
