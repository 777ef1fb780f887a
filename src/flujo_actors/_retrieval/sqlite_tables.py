"""The tables of a collection in SQLite: passages with a real, indexed column for every field, and their words.

The words are indexed as `words_of` gives them, so that a question never has to be a query of FTS5, and what the index
says of a word (how many passages hold it) is about the same words as the relevance.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._dsl.collections import Collection, collection_name, filterable
from ..errors import RetrievalError
from .passages import Passage
from .words import words_of

_COLUMN_TYPES: Mapping[type, str] = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER"}
_MOST_WORDS = 100
"""How many words of a query are looked for, the rarest: FTS5 takes no expression of any depth."""

_MOST_AT_ONCE = 500
"""How many rows are asked for in one statement."""


def quoted(name: str) -> str:
    """A name as SQL writes it."""
    return '"' + name.replace('"', '""') + '"'


class Tables:
    """The statements of one collection."""

    def __init__(self, collection: type[Collection]) -> None:
        name = collection_name(collection)
        self._name, self._fields = name, filterable(collection)
        self.passage, self.words = quoted(f"{name}_passage"), quoted(f"{name}_words")
        self.vocabulary = quoted(f"{name}_vocabulary")
        self._columns = [quoted(field) for field in self._fields]

    # --- making them ---

    def create(self, db: sqlite3.Connection) -> None:
        """Make what is not there yet; `RetrievalError` if there is something else."""
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
        row = db.execute(f"SELECT _number FROM {self.passage} WHERE _id = ?", (id,)).fetchone()
        if row is None:
            return False
        db.execute(f"DELETE FROM {self.words} WHERE rowid = ?", row)
        db.execute(f"DELETE FROM {self.passage} WHERE _number = ?", row)
        return True

    # --- reading ---

    def size(self, db: sqlite3.Connection) -> tuple[int, float]:
        """How many passages there are, and how many words they have on average."""
        count, mean = db.execute(f"SELECT count(*), avg(_length) FROM {self.passage}").fetchone()
        return count, mean or 0.0

    def vectors(self, db: sqlite3.Connection) -> list[tuple[int, bytes]]:
        """Every stored vector, with the number of its row."""
        return db.execute(f"SELECT _number, _vector FROM {self.passage} WHERE _vector IS NOT NULL").fetchall()

    def holding(self, db: sqlite3.Connection, words: Iterable[str]) -> dict[str, int]:
        """How many passages hold each of these words."""
        sql = f"SELECT doc FROM {self.vocabulary} WHERE term = ?"
        found = ((word, db.execute(sql, (word,)).fetchone()) for word in words)
        return {word: 0 if row is None else row[0] for word, row in found}

    def worded(
        self, db: sqlite3.Connection, holding: Mapping[str, int], filters: Mapping[str, Any], limit: int
    ) -> dict[int, Passage]:
        """The passages that hold most of these words, by the number of their row."""
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
        """The rows that every filter lets through; `None` for all of them."""
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
            allowed = list(wanted) if isinstance(wanted, list | tuple) else [wanted]
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
