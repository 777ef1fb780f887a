"""`known_citations`: a validator for answers that say where they come from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .._core.assembled import AssembledContext

_CITED = re.compile(r"\[([^\[\]\n]{1,200})\]")
_ID_LIKE = re.compile(r"[^\s\[\]]*[\w][^\s\[\]]*")


def known_citations(output: object, *, assembled: AssembledContext) -> str | None:
    """Refuse an answer that cites, like `[p9]`, a passage that was not shown; say which ones were.

    A word, a number or an id in square brackets is a citation, also one of several with commas between; other text in
    brackets, a link's text and the `[…]` of a passage that was cut are not. All texts of a structured answer count.
    """
    known = dict.fromkeys(assembled.source_ids)
    unknown = [cited for text in _texts(output) for cited in cited_in(text, known) if cited not in known]
    if not unknown:
        return None
    told = ", ".join(f"[{each}]" for each in dict.fromkeys(unknown))
    shown = ", ".join(f"[{each}]" for each in known) or "none at all"
    return f"it cites {told}, but the passages that were shown are: {shown}"


def cited_in(text: str, known: Mapping[str, object]) -> Iterator[str]:
    """The ids that a text cites, as often as it does; what is known is an id however it looks."""
    for match in _CITED.finditer(text):
        if match.group(1) in known:
            yield match.group(1)
        elif not text.startswith("(", match.end()):
            parts = [part.strip() for part in re.split(r"[,;]", match.group(1))]
            if all(part in known or _ID_LIKE.fullmatch(part) for part in parts):
                yield from parts


_DEEPEST = 20
"""How deeply nested texts of a structured answer are looked at."""


def _texts(output: object, depth: int = 0) -> Iterator[str]:
    """Every text in an answer, however it is structured."""
    if isinstance(output, str):
        yield output
    elif depth < _DEEPEST:
        for part in _parts(output):
            yield from _texts(part, depth + 1)


def _parts(output: object) -> list[object]:
    if isinstance(output, Mapping):
        return list(output.values())
    if isinstance(output, list | tuple | set | frozenset):
        return list(output)
    names: Iterable[Any] = vars(output) if hasattr(output, "__dict__") else getattr(type(output), "__slots__", ())
    return [getattr(output, name, None) for name in names if not str(name).startswith("_")]
