"""Embedders of pydantic-ai, as retrievers need them: checked, called from synchronous code, and counted.

Whoever adds passages has no loop, and a provider's connections belong to the loop they were made on. So all calls from
synchronous code go to one loop, in a thread of its own; a run embeds its queries on the loop of its host.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, TypeVar

from .._core.usage import Usage
from ..errors import DeclarationError

if TYPE_CHECKING:
    from pydantic_ai.embeddings import Embedder, EmbeddingResult

T = TypeVar("T")


def checked_embedder(given: object) -> Embedder | None:
    """The embedder: pydantic-ai's, or one made of a model or of the name of one."""
    if given is None:
        return None
    from pydantic_ai.embeddings import Embedder, EmbeddingModel  # only for those who search by meaning

    if isinstance(given, Embedder):
        return given
    if isinstance(given, EmbeddingModel | str):
        return Embedder(given)
    raise DeclarationError(f"embedder must be a pydantic-ai Embedder, or a model's name, not {given!r}")


def embedded_documents(embedder: Embedder, texts: Sequence[str]) -> list[list[float]]:
    """The vectors of some texts, from synchronous code."""
    if not texts:
        return []
    return [list(map(float, vector)) for vector in in_loop(embedder.embed_documents(list(texts))).embeddings]


def embedded_query(embedder: Embedder, query: str) -> EmbeddingResult:
    """The vector of a query, from synchronous code."""
    return in_loop(embedder.embed_query(query))


def vector_of(embedded: EmbeddingResult) -> list[float]:
    """The one vector of an embedded query."""
    return list(map(float, embedded.embeddings[0]))


def usage_of(embedded: EmbeddingResult) -> Usage:
    """What embedding has used; without a price, what it cost is not known and counts as nothing."""
    try:
        cost = float(embedded.cost().total_price)
    except LookupError:
        cost = 0.0
    return Usage(input_tokens=embedded.usage.input_tokens, requests=1, cost_usd=cost)


# --- a loop for synchronous code ----------------------------------------------------------------------------


class _Loop:
    """An asyncio loop in a daemon thread, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="flujo_actors embedding", daemon=True).start()
            return self._loop


_loops = [_Loop()]


def _forget() -> None:
    """After a fork the thread is gone in the child; a new one is started when it is needed."""
    _loops[0] = _Loop()


os.register_at_fork(after_in_child=_forget)


def in_loop(coroutine: Coroutine[object, object, T]) -> T:
    """What a coroutine comes to, waited for in this thread."""
    return asyncio.run_coroutine_threadsafe(coroutine, _loops[0].running()).result()
