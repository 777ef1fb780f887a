"""Texts that stand for values: a structured step degraded to them, and they travel through whatever contains steps.

1. A result whose output is such a text says `degraded`; one with such texts in a list or a dict, the `degraded_items`.
2. Both are part of the result, so that they are known after the run was stored and resumed.
3. Whoever asks for a dict gets an object made of the text; everybody else gets the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from .attempts import NOTHING
from .outcomes import StepResult

NO_TEXTS: frozenset[str] = frozenset()


def degraded_texts(result: StepResult) -> frozenset[str]:
    """The texts in a result that stand for values."""
    metadata, output = result.metadata, result.output
    if not metadata:
        return NO_TEXTS
    if "degraded" in metadata:
        return frozenset((output,)) if isinstance(output, str) else NO_TEXTS
    if "degraded_items" not in metadata:
        return NO_TEXTS
    items = frozenset(metadata["degraded_items"])
    return frozenset(each for key, each in _items(output) if str(key) in items and isinstance(each, str))


def marks(output: object, texts: frozenset[str]) -> Mapping[str, object]:
    """What the metadata of an output says of the texts in it that stand for values."""
    if not texts:
        return NOTHING
    if isinstance(output, str):
        return {"degraded": True} if output in texts else NOTHING
    items = [str(key) for key, each in _items(output) if isinstance(each, str) and each in texts]
    return {"degraded_items": items} if items else NOTHING


def _items(output: object) -> Iterable[tuple[object, object]]:
    if isinstance(output, dict):
        return output.items()
    return enumerate(output) if isinstance(output, list) else ()
