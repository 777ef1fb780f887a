"""What a retriever returned, checked: a search that was answered wrongly is an error, never a prompt.

Rules:

1. A relevance is a number from 0 to 1.
2. A filter is a wall: a passage that shows another value in a filtered field than was asked for is refused.
3. The floor, the order (the best first, equals as they came) and `top_k` are applied again, whatever the retriever did.
4. What is wrong is told by collection, field and id, never by the text of a passage.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from ..errors import RetrievalError
from .assembled import RetrievalResult, Retrieved


def read_found(answer: object, *, collection: str) -> Retrieved:
    """What a retriever returned, as `Retrieved`."""
    found = answer if isinstance(answer, Retrieved) else Retrieved(results=_listed(answer, collection))
    for result in found.results:
        if not isinstance(result, RetrievalResult):
            raise RetrievalError(
                f"the retriever of {collection!r} returned a {type(result).__name__}, not a RetrievalResult(…)"
            )
    return found


def _listed(answer: object, collection: str) -> tuple[Any, ...]:
    if isinstance(answer, str | bytes | Mapping) or not isinstance(answer, Iterable):
        raise RetrievalError(
            f"the retriever of {collection!r} returned a {type(answer).__name__}, not a list of RetrievalResult(…)"
        )
    return tuple(answer)


def admitted(
    results: Iterable[RetrievalResult],
    *,
    collection: str,
    filters: Mapping[str, Any],
    min_relevance: float,
    top_k: int,
    in_order: bool = True,
) -> tuple[RetrievalResult, ...]:
    """The passages that may be shown; see the module's rules. `in_order` is false for what was ordered on purpose."""
    checked = [_checked(result, collection, filters) for result in results]
    relevant = [result for result in checked if result.score >= min_relevance]
    ordered = sorted(relevant, key=lambda result: -result.score) if in_order else relevant
    return tuple(ordered[:top_k])


def _checked(result: RetrievalResult, collection: str, filters: Mapping[str, Any]) -> RetrievalResult:
    which = "a passage" if result.source_id is None else f"passage {result.source_id!r}"
    if not isinstance(result.content, str):
        raise RetrievalError(
            f"{which} of {collection!r} has a {type(result.content).__name__} as its content, not text"
        )
    if not is_relevance(result.score):
        raise RetrievalError(
            f"{which} of {collection!r} has the score {result.score!r}; a relevance is a number from 0 to 1"
        )
    for field, wanted in filters.items():
        if field in result.metadata and not lets_through(wanted, result.metadata[field]):
            raise RetrievalError(
                f"{which} of {collection!r} has another {field!r} than was asked for: the retriever does not keep to "
                "the filter"
            )
    return result if type(result.score) is float else attrs.evolve(result, score=float(result.score))


def is_relevance(score: object) -> bool:
    """Whether this is a number from 0 to 1."""
    if not isinstance(score, numbers.Real) or isinstance(score, bool):
        return False
    return math.isfinite(score) and 0 <= float(score) <= 1


def lets_through(wanted: object, value: object) -> bool:
    """Whether a filter lets a value through: it is the one that is wanted, or one of them. `1` is not `True`."""
    allowed = wanted if isinstance(wanted, list | tuple) else (wanted,)
    return any(isinstance(each, bool) is isinstance(value, bool) and each == value for each in allowed)
