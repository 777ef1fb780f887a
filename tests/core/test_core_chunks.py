"""Chunks of a stream, made one after the other."""

from __future__ import annotations

import itertools

import attrs
import pytest

from flujo_actors import Chunk
from flujo_actors._core.outcomes import chunk_maker


def test_a_made_chunk_is_the_chunk_that_the_constructor_gives() -> None:
    """Every field is set, also those that a later version may add."""
    make = chunk_maker("talk", 2, itertools.count(5))
    assert make("a") == Chunk(data="a", step_name="talk", attempt=2, seq=5)
    assert make("b", {"x": 1}) == Chunk(data="b", step_name="talk", attempt=2, seq=6, partial_value={"x": 1})
    assert set(attrs.asdict(make("c"))) == {field.name for field in attrs.fields(Chunk)}


def test_a_made_chunk_is_frozen_and_hashable_like_any_other() -> None:
    """Only the making is different."""
    chunk = chunk_maker("talk", 1, itertools.count())("a")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        chunk.data = "b"  # type: ignore[misc]
    assert hash(chunk) == hash(Chunk(data="a", step_name="talk"))
