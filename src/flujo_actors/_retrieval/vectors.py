"""Vectors in memory, searched exactly: every one is compared with the query, which numpy does faster than an index."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import DeclarationError, RetrievalError

MISSING_NUMPY = (
    "searching by meaning in SQLite needs numpy: install flujo-actors[retrieval], or leave the embedder away, and "
    "search by words"
)


def need_numpy() -> Any:
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

    def nearest(self, vector: bytes, count: int, among: Sequence[int] | None) -> dict[int, float]:
        """The rows whose vectors are most like this one, of all or among some, with their cosines: 0 to 1."""
        numpy = self._numpy
        if not self.dimensions or (among is not None and not len(among)):
            return {}
        places = self._places(among)
        vectors = self._vectors if places is None else self._vectors[places]
        cosines = vectors @ numpy.frombuffer(vector, dtype="<f4")
        best = numpy.argsort(-cosines, kind="stable")[:count] if len(cosines) <= count else self._top(cosines, count)
        numbers = self.numbers if places is None else self.numbers[places]
        return {int(numbers[place]): min(1.0, max(0.0, float(cosines[place]))) for place in best}

    def _top(self, cosines: Any, count: int) -> Any:
        numpy = self._numpy
        best = numpy.argpartition(-cosines, count)[:count]
        return best[numpy.argsort(-cosines[best], kind="stable")]

    def _places(self, among: Sequence[int] | None) -> Any:
        if among is None:
            return None
        numpy = self._numpy
        return numpy.flatnonzero(numpy.isin(self.numbers, numpy.asarray(among, dtype=numpy.int64)))
