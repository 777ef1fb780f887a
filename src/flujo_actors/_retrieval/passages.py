"""Passages as they are added: a text, an id and the fields of their collection."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from .._core.assembled import RetrievalResult
from .._dsl.collections import Collection, check_field, filterable, fits
from ..errors import DeclarationError


@attrs.frozen(kw_only=True)
class Passage:
    """One passage, checked."""

    id: str
    text: str
    fields: Mapping[str, object]

    def found(self, score: float) -> RetrievalResult:
        """The passage as a result of a search."""
        return RetrievalResult(content=self.text, score=score, source_id=self.id, metadata=dict(self.fields))


def checked_passage(collection: type[Collection], text: object, id: object, fields: Mapping[str, Any]) -> Passage:
    """The passage; `DeclarationError` for a field that the collection has not, or of another type.

    A field that is left away is one that no filter lets through. Without an id a passage is known by its text, so that
    adding it twice adds it once.
    """
    what = f"a passage of {collection.__name__}"
    if not isinstance(text, str) or not text.strip():
        raise DeclarationError(f"{what} must have a text that is not empty, not {text!r:.100}")
    for field in fields:
        check_field(collection, field, what=f"{what} has the field")
    for field, value in fields.items():
        kind = filterable(collection)[field]
        if not fits(kind, value):
            raise DeclarationError(f"{what}: field {field!r} must be {kind.__name__}, not {value!r}")
    return Passage(id=_checked_id(id, text, what), text=text, fields=dict(fields))


def _checked_id(id: object, text: str, what: str) -> str:
    if id is None:
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if not isinstance(id, str) or not id:
        raise DeclarationError(f"{what}: id must be a text that is not empty, not {id!r}")
    return id


def listed_passages(collection: type[Collection], items: Iterable[tuple[str, Mapping[str, object]]]) -> list[Passage]:
    """The passages of `add_many`, of which the last one with an id counts."""
    passages: dict[str, Passage] = {}
    for item in items:
        if not isinstance(item, tuple | list) or len(item) != 2 or not isinstance(item[1], Mapping):
            raise DeclarationError(f'add_many takes pairs (text, {{"id": …, field: …}}), not {item!r:.100}')
        fields = dict(item[1])
        passage = checked_passage(collection, item[0], fields.pop("id", None), fields)
        passages[passage.id] = passage
    return list(passages.values())
