"""Vectors in memory, searched exactly: every one is compared with the query, which numpy does faster than an index."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from ..errors import DeclarationError, RetrievalError

MISSING_NUMPY = (
    "searching by meaning in SQLite needs numpy: install flujo-actors[retrieval], or leave the embedder away, and "
    "search by words"
)


def need_numpy() -> ModuleType:
    """numpy, or an error that says what to install."""
    try:
        import numpy  # an extra: only those who have an embedder need it
    except ImportError:
        raise DeclarationError(MISSING_NUMPY) from None
    return numpy


def packed(vector: Sequence[float]) -> bytes:
    """A vector as it is stored: of length 1, or of nothing but zeros, in 32 bits each."""
    numpy = need_numpy()
    found = numpy.nan_to_num(numpy.asarray(vector, dtype=numpy.float32))
    length = float(numpy.linalg.norm(found))
    unit: bytes = (found / length if length else found).astype("<f4").tobytes()
    return unit


class Matrix:
    """The stored vectors of a collection, with the number of each one's row."""

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
        """Refuse a vector of another length than those that are stored."""
        if self.dimensions and len(vector) != 4 * self.dimensions:
            raise RetrievalError(
                f"the passages of {collection!r} were embedded with {self.dimensions} dimensions, and the query with "
                f"{len(vector) // 4}: use the embedder that they were added with, or add them again"
            )

    def compared(self, vector: bytes) -> Compared:
        """All of them compared with this one."""
        numpy = self._numpy
        found = numpy.frombuffer(vector, dtype="<f4")
        cosines = self._vectors @ found if self.dimensions else numpy.zeros(0, dtype="<f4")
        return Compared(numpy, self.numbers, cosines)


class Compared:
    """How like a query every stored vector is: 0 to 1."""

    def __init__(self, numpy: ModuleType, numbers: Any, cosines: Any) -> None:
        self._numpy, self._numbers, self._cosines = numpy, numbers, cosines

    def best(self, count: int, among: Sequence[int] | None) -> dict[int, float]:
        """The rows that are most like it, of all or among some."""
        numpy = self._numpy
        places = numpy.arange(len(self._numbers)) if among is None else self._places(among)
        cosines = self._cosines[places]
        if len(cosines) > count:
            places = places[numpy.argpartition(-cosines, count)[:count]]
        return self._told(places)

    def of(self, rows: Sequence[int]) -> dict[int, float]:
        """How like it these rows are, as far as they have a vector."""
        return self._told(self._places(rows))

    def _places(self, rows: Sequence[int]) -> Any:
        numpy = self._numpy
        return numpy.flatnonzero(numpy.isin(self._numbers, numpy.asarray(rows, dtype=numpy.int64)))

    def _told(self, places: Any) -> dict[int, float]:
        pairs = zip(self._numbers[places].tolist(), self._cosines[places].tolist(), strict=True)
        return {number: min(1.0, max(0.0, cosine)) for number, cosine in pairs}
