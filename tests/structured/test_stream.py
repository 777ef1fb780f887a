"""Chunks become text, whatever the cuts; bounds hold; previews stay linear."""

import itertools
import json
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors.errors import StreamLimitExceeded, StructuredOutputError
from flujo_actors.structured import Preview, StreamBuffer, parse_and_validate, partial_value

TEXT = json.dumps({"a": 'größe 北京 😀 \\ " \n', "b": [1, 2.5, None]}, ensure_ascii=False)


def pieces(data: str | bytes, cuts: list[int]) -> list[str | bytes]:
    marks = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in itertools.pairwise(marks)]


@given(st.lists(st.integers(0, 500)), st.booleans())
def test_every_cut_gives_the_same_text_and_value(cuts: list[int], as_bytes: bool) -> None:
    """A chunk may end inside a character or an escape."""
    buffer = StreamBuffer()
    streamed = "".join(buffer.feed(piece) for piece in pieces(TEXT.encode() if as_bytes else TEXT, cuts))
    assert buffer.finish() == TEXT
    assert streamed == TEXT
    assert parse_and_validate(buffer.text) == json.loads(TEXT)


def test_surrogate_halves_in_two_chunks_are_one_character() -> None:
    """Text that was cut as UTF-16 comes together again."""
    buffer = StreamBuffer()
    assert buffer.feed("a\ud83d") == "a"
    assert buffer.feed("\ude00") == "😀"
    assert buffer.finish() == "a😀"


@pytest.mark.parametrize("broken", [b"abc\xe4\xbd", b"\xff\xfe", "x\ud83d"])
def test_a_stream_that_ends_inside_a_character_is_refused(broken: str | bytes) -> None:
    """Nothing is replaced or dropped silently."""
    buffer = StreamBuffer()
    with pytest.raises(StructuredOutputError):  # noqa: PT012
        buffer.feed(broken)
        buffer.finish()


def test_the_bounds_keep_what_had_arrived() -> None:
    """Over the bytes or the chunks: a typed error with the partial text."""
    small = StreamBuffer(max_bytes=6)
    small.feed("北京")
    with pytest.raises(StreamLimitExceeded, match="6 bytes") as caught:
        small.feed("x")
    assert caught.value.partial_text == "北京"
    few = StreamBuffer(max_chunks=2)
    few.feed("a")
    few.feed("b")
    with pytest.raises(StreamLimitExceeded, match="2 chunks") as caught:
        few.feed("c")
    assert caught.value.partial_text == "ab"


@pytest.mark.slow
def test_many_chunks_and_megabytes_stay_flat_and_linear() -> None:
    """100,000 chunks of 50 MB need little more memory than the text and its final join."""
    buffer, chunk = StreamBuffer(), "x" * 500
    preview = Preview()
    tracemalloc.start()
    started = time.thread_time()
    for _ in range(100_000):
        buffer.feed(chunk)
        preview.partial_value(buffer)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(buffer.finish()) == 50_000_000
    assert kept < 55_000_000
    assert peak < 120_000_000
    assert time.thread_time() - started < 60


def test_previews_grow_with_the_stream_and_their_work_stays_linear() -> None:
    """Each preview waits until the text has grown by half: a logarithmic number of them."""
    text = json.dumps([{"id": i, "title": "order"} for i in range(5_000)])
    buffer, preview = StreamBuffer(), Preview()
    seen = []
    for at in range(0, len(text), 10):
        buffer.feed(text[at : at + 10])
        value = preview.partial_value(buffer)
        if value is not None:
            seen.append(len(value))
    assert seen == sorted(seen)
    assert 5 < len(seen) < 30


@pytest.mark.parametrize(
    ("text", "value"),
    [('Sure: {"a": "b', {"a": "b"}), ("<think>{1}</think>[1, 2", [1, 2]), ("prose", None), ('{"a": x', None)],
)
def test_a_preview_is_what_is_there_so_far(text: str, value: object) -> None:
    """Prose and damage have no preview; a cut value has one."""
    assert partial_value(text) == value
