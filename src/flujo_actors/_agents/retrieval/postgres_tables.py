"""Table of a collection in Postgres, and its statements.

Rules:

1. pgvector's type and operator are written with the schema of the extension: the `search_path` may hold only another.
2. Every field is a real column with an index, so that a narrow filter is answered exactly, by sorting its rows.
3. Any word of a query matches: `plainto_tsquery` requires all of them, so its `&` become `|`.
4. A vector of zeros has no cosine: NaN in Postgres is no relevance.
5. The rows come by meaning and by words, more than requested, each by its index; the two relevances are
   exact for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Connection, sql

from ..._dsl.retrieval_collections import Collection, collection_name, filterable
from ...errors import RetrievalError
from .passages import Passage, allowed_values, is_storable

_COLUMN_TYPES: Mapping[type, str] = {str: "text", int: "bigint", float: "double precision", bool: "boolean"}
_LARGEST_INDEXED = 2000
"""Maximum number of dimensions that pgvector indexes."""

MANY = 20_000
"""Passage count from which vectors are indexed instead of compared."""

_ANY_WORD = "replace(plainto_tsquery('english', %(query)s)::text, '&', '|')::tsquery"

Row = Sequence[object]


class PostgresTables:
    """Statements of one collection; `home` is pgvector's schema, if needed."""

    def __init__(self, collection: type[Collection], home: str | None) -> None:
        self._name, self._fields = collection_name(collection), filterable(collection)
        self.passage = sql.Identifier(f"{self._name}_passage")
        self._home = None if home is None else sql.Identifier(home)

    def _columns(self, prefix: str = "") -> sql.Composable:
        named = [sql.SQL(", ") + sql.SQL(prefix) + sql.Identifier(field) for field in self._fields]
        return sql.Composed(named)

    # --- making it ---

    def create(self, db: Connection, dimensions: int | None) -> None:
        """Create missing tables; raise `RetrievalError` for a conflicting one."""
        fields = sql.Composed(
            [
                sql.SQL(", {} {}").format(sql.Identifier(field), sql.SQL(_COLUMN_TYPES[kind]))
                for field, kind in self._fields.items()
            ]
        )
        vector: sql.Composable = sql.SQL("")
        if self._home is not None and dimensions is not None:
            vector = sql.SQL(", _vector {}.vector({})").format(self._home, sql.Literal(dimensions))
        db.execute(
            sql.SQL(
                "CREATE TABLE IF NOT EXISTS {} (_id text PRIMARY KEY, _body text NOT NULL, _words tsvector "
                "GENERATED ALWAYS AS (to_tsvector('english', _body)) STORED{}{})"
            ).format(self.passage, vector, fields)
        )
        for name, column in [("words", "_words"), *((field, field) for field in self._fields)]:
            db.execute(
                sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING {} ({})").format(
                    sql.Identifier(f"{self._name}_by_{name}"),
                    self.passage,
                    sql.SQL("gin" if column == "_words" else "btree"),
                    sql.Identifier(column),
                )
            )

    def has_table(self, db: Connection) -> bool:
        """Return whether the table exists; raise `RetrievalError` if its fields differ."""
        rows = db.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped",
            (self.passage.as_string(db),),
        ).fetchall()
        have = {row[0] for row in rows}
        if have and {name for name in have if not name.startswith("_")} != set(self._fields):
            raise RetrievalError(
                f"the passages of {self._name!r} were stored with other fields than {sorted(self._fields)}: store them "
                "anew, in another schema or under another name"
            )
        if have and self._home is not None and "_vector" not in have:
            raise RetrievalError(
                f"the passages of {self._name!r} were added without an embedder: add them again, in another schema or "
                "under another name, or search by words"
            )
        return bool(have)

    def index_vectors(self, db: Connection, dimensions: int) -> None:
        """Make the graph that finds near vectors, once there are many."""
        if self._home is None or dimensions > _LARGEST_INDEXED or self.count(db) < MANY:
            return
        db.execute(
            sql.SQL("CREATE INDEX IF NOT EXISTS {} ON {} USING hnsw (_vector {}.vector_cosine_ops)").format(
                sql.Identifier(f"{self._name}_by_meaning"), self.passage, self._home
            )
        )

    def count(self, db: Connection) -> int:
        """Return the number of passages there are."""
        row = db.execute(sql.SQL("SELECT count(*) FROM {}").format(self.passage)).fetchone()
        return 0 if row is None else int(row[0])

    # --- writing ---

    def put(self, db: Connection, passages: Sequence[tuple[Passage, str | None]]) -> None:
        """Store passages, each in place of the one with its id."""
        names = [*(["_vector"] if self._home is not None else []), *self._fields]
        given = [sql.SQL("_id"), sql.SQL("_body"), *map(sql.Identifier, names)]
        marks = [sql.SQL("%s"), sql.SQL("%s"), *(self._mark(name) for name in names)]
        changed = sql.SQL(", ").join(
            sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in ["_body", *names]
        )
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({}) ON CONFLICT (_id) DO UPDATE SET {}").format(
            self.passage, sql.SQL(", ").join(given), sql.SQL(", ").join(marks), changed
        )
        vectors = [() if self._home is None else (vector,) for _, vector in passages]
        rows = [
            (passage.id, passage.text, *vector, *map(passage.fields.get, self._fields))
            for (passage, _), vector in zip(passages, vectors, strict=True)
        ]
        with db.cursor() as cursor:
            cursor.executemany(statement, rows)

    def _mark(self, name: str) -> sql.Composable:
        if name != "_vector" or self._home is None:
            return sql.SQL("%s")
        return sql.SQL("%s::text::{}.vector").format(self._home)

    def drop(self, db: Connection, id: str) -> bool:
        """Delete a passage; whether there was one."""
        if not is_storable(id, nul=False):
            return False
        return db.execute(sql.SQL("DELETE FROM {} WHERE _id = %s").format(self.passage), (id,)).rowcount > 0

    # --- reading ---

    def found(
        self, db: Connection, query: str, vector: str | None, filters: Mapping[str, Any], limit: int
    ) -> list[tuple[float, Passage]]:
        """Passages with their relevance, the best first; see the module's rules."""
        where, values = self._where(filters)
        parts = {"passage": self.passage, "columns": self._columns(), "where": where}
        values |= {"query": query, "vector": vector, "limit": limit}
        statement = _BY_WORDS if vector is None or self._home is None else _BY_BOTH
        if self._home is not None:
            parts |= {"home": self._home}
        rows = db.execute(sql.SQL(statement).format(**parts), values).fetchall()
        return [(float(score), self._passage(name, body, rest)) for score, name, body, *rest in rows]

    def _where(self, filters: Mapping[str, Any]) -> tuple[sql.Composable, dict[str, Any]]:
        parts: list[sql.Composable] = []
        values: dict[str, object] = {}
        for number, (field, wanted) in enumerate(filters.items()):
            kind = _COLUMN_TYPES[self._fields[field]]
            parts.append(sql.SQL(f" AND {{}} = ANY(%(filter{number})s::{kind}[])").format(sql.Identifier(field)))
            values[f"filter{number}"] = allowed_values(wanted, nul=False)
        return sql.Composed(parts), values

    def _passage(self, id: str, body: str, values: Sequence[object]) -> Passage:
        pairs = zip(self._fields, values, strict=True)
        return Passage(id=id, text=body, fields={field: value for field, value in pairs if value is not None})


_BY_WORDS = f"""
    SELECT ts_rank_cd(_words, {_ANY_WORD}, 32)::float8 AS relevance, _id, _body{{columns}} FROM {{passage}}
    WHERE _words @@ {_ANY_WORD}{{where}} ORDER BY relevance DESC, _id LIMIT %(limit)s
"""

_BY_BOTH = f"""
    WITH meant AS (
      SELECT _id FROM {{passage}} WHERE TRUE{{where}}
      ORDER BY _vector operator({{home}}.<=>) %(vector)s::text::{{home}}.vector LIMIT %(limit)s),
    worded AS (
      SELECT _id FROM {{passage}} WHERE _words @@ {_ANY_WORD}{{where}}
      ORDER BY ts_rank_cd(_words, {_ANY_WORD}, 32) DESC LIMIT %(limit)s),
    near AS (SELECT _id FROM meant UNION SELECT _id FROM worded)
    SELECT 0.5 * ts_rank_cd(_words, {_ANY_WORD}, 32)::float8 + 0.5 * least(1, greatest(0,
        1 - coalesce(nullif(_vector operator({{home}}.<=>) %(vector)s::text::{{home}}.vector, 'NaN'), 1)))
      AS relevance, _id, _body{{columns}} FROM {{passage}} JOIN near USING (_id)
    ORDER BY relevance DESC, _id LIMIT %(limit)s
"""
