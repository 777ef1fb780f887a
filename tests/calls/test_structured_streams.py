"""Streams of structured steps: buffered, bounded, shown live, and worth the same as the whole text."""

from __future__ import annotations

import functools
import json
import sys
import time
import tracemalloc

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_ai import Agent
from said_by_models import (
    LIMA,
    LIMA_JSON,
    NOISY,
    PROSE,
    Call,
    City,
    CityDict,
    Played,
    noted,
    run,
    says,
    watch,
)

from flujo_actors import Chunk, Failure, Flujo, Step

TEXTS = [
    LIMA_JSON,
    NOISY,
    "<think>{maybe}</think>\n" + LIMA_JSON,
    '{"name": "北京 \\u5317 \\ud83d\\ude00 😀", "people": 21000000}',
    'إليك النتيجة:\n{"name": "القاهرة", "people": 10}\nشكرا',
    "{“name”：“दिल्ली”，“people”：3}",
    PROSE,
    '{"name": "Lima"}',
    '{"people": 1, "name": "Li',
    "",
]


class Pieces:
    """An agent that streams the pieces it is given; `closed` tells whether its generator was."""

    def __init__(self, *pieces, error=None, pause=None):
        self.pieces, self.error, self.pause = pieces, error, pause
        self.sent, self.closed = 0, False

    async def stream(self, data):
        try:
            for piece in self.pieces:
                if self.pause is not None:
                    await trio.sleep(self.pause)
                self.sent += 1
                yield piece
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def streams(*pieces, schema=City, **how):
    return Step("say", Pieces(*pieces, **how), processing={"schema": schema})


def cuts(text):
    """Every text, as str or bytes, in pieces cut anywhere."""
    kinds = st.sampled_from([text, text.encode()])
    return kinds.flatmap(
        lambda whole: st.lists(st.integers(0, len(whole)), max_size=12).map(lambda at: cut(whole, sorted(at)))
    )


def cut(whole, places):
    ends = [*places, len(whole)]
    return [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


def ending(result):
    return result.success, result.output, noted(result).get("degraded"), result.feedback


# --- the same value -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(TEXTS).flatmap(lambda text: st.tuples(st.just(text), cuts(text))))
def test_every_cut_into_chunks_gives_the_same_value(case):
    """Streamed or not, in whatever pieces, a text is worth the same."""
    text, pieces = case

    async def main():
        whole = await run(says(text), 1)
        chunks, streamed = await watch(streams(*pieces), 1)
        unwatched = await run(streams(*pieces), 1)
        assert ending(whole) == ending(streamed) == ending(unwatched)
        assert [chunk.data for chunk in chunks] == pieces
        assert [chunk.seq for chunk in chunks] == list(range(len(pieces)))

    trio.run(main)


@pytest.mark.trio
@pytest.mark.parametrize("text", TEXTS)
async def test_a_model_that_streams_is_worth_the_same(text):
    """The text of a model agent, too."""
    if not text:
        return
    once = {"aros": {"repair": {"enable_llm": False}, "fallback": {"max_stages": 0}}}
    step = Step("say", Agent(Played(text).model), processing={"schema": City})
    result, (chunks, streamed) = await run(step, settings=once), await watch(step, settings=once)
    assert ending(result) == ending(streamed)
    assert "".join(chunk.data for chunk in chunks) == text


@pytest.mark.trio
async def test_every_byte_may_be_a_chunk():
    """Chunks that end inside a character, an escape or a surrogate pair wait for the rest."""
    text = '{"name": "北😀\\u00e9\\ud83d\\ude00\\n", "people": 1}'
    pieces = [bytes([byte]) for byte in text.encode()]
    _, result = await watch(streams(*pieces))
    assert result.output == City(name="北😀é😀\n", people=1)


@pytest.mark.trio
@pytest.mark.parametrize("pieces", [[b'{"name": "\xe5\x8c'], [b'{"name": "', b'\xff", "people": 1}']])
async def test_a_stream_that_ends_inside_a_character_fails_and_says_so(pieces):
    """Nothing is replaced or left out to make it fit."""
    result = await run(streams(*pieces))
    assert not result.success
    assert "at stage 'stream'" in result.feedback
    assert result.step_history[-1].output == '{"name": "'


# --- what is shown ------------------------------------------------------------------------------------------


@pytest.mark.trio
async def test_chunks_of_an_output_tool_are_shown_live():
    """The arguments of the output tool are the text of the answer, whatever the tool is called."""
    from pydantic_ai import ToolOutput

    for output_type in (City, ToolOutput(City, name="report")):
        chunks, result = await watch(Step("say", Agent(Played(Call(LIMA_JSON)).model, output_type=output_type)))
        assert "".join(chunk.data for chunk in chunks) == LIMA_JSON
        assert result.output == City(**LIMA)


@pytest.mark.trio
async def test_previews_grow_and_are_few():
    """Previews come as the text grows by half, show what there is, and are never the value."""
    value = {"names": [f"name {number}" for number in range(2000)]}
    text = json.dumps(value)
    chunks, result = await watch(
        streams(*(text[at : at + 7] for at in range(0, len(text), 7)), schema={"type": "object"})
    )
    previews = [chunk.partial_value for chunk in chunks if chunk.partial_value is not None]
    assert 10 < len(previews) < 40
    for names in (preview["names"][:-1] for preview in previews):  # the last one may be half a name
        assert names == value["names"][: len(names)]
    assert len(previews[-1]["names"]) < 2000
    assert result.output == value


@pytest.mark.trio
async def test_a_second_call_goes_on_counting_its_chunks():
    """Chunks of a stricter retry belong to the same attempt and have numbers of their own."""
    step = Step("say", Agent(Played(PROSE, PROSE, PROSE, LIMA_JSON).model), processing={"schema": City})
    chunks, result = await watch(step)
    assert result.output == City(**LIMA)
    assert [chunk.seq for chunk in chunks] == list(range(len(chunks)))
    assert "".join(chunk.data for chunk in chunks) == PROSE + LIMA_JSON


@pytest.mark.trio
async def test_without_aggregation_the_text_is_read_all_the_same():
    """`aros.streaming.aggregate_structured` switches the aggregator off: no bounds, no previews, the same value."""
    off = {"aros": {"streaming": {"aggregate_structured": False, "max_chunks": 1}}}
    chunks, result = await watch(streams(*LIMA_JSON), settings=off)
    assert result.output == City(**LIMA)
    assert {chunk.partial_value for chunk in chunks} == {None}


@pytest.mark.trio
async def test_a_stream_of_values_is_a_list_of_them():
    """Pieces that are no text are the elements of the output."""
    quito = {"name": "Quito", "people": 3}
    assert (await run(streams(LIMA, quito, schema=list[CityDict]))).output == [LIMA, quito]
    chunks, result = await watch(streams(LIMA, schema=City))
    assert result.output == City(**LIMA)
    assert [chunk.data for chunk in chunks] == [LIMA]


@pytest.mark.trio
async def test_an_outcome_in_a_stream_is_the_steps_outcome():
    """A stream may decide for itself how the step ends."""
    result = await run(streams("{", Failure(error=None, feedback="enough")))
    assert result.status == "failed"
    assert result.step_history[0].feedback == "enough"


# --- bounds -------------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("bound", [{"max_bytes": 20}, {"max_chunks": 20}])
@pytest.mark.parametrize("watched", [False, True])
async def test_past_a_bound_the_step_fails_and_the_producer_is_closed(bound, watched):
    """What had arrived is kept; nothing cut off is passed off as whole."""
    agent = Pieces(*LIMA_JSON)
    step = Step("say", agent, processing={"schema": City})
    config = {"settings": {"aros": {"streaming": bound}}}
    result = (await watch(step, **config))[1] if watched else await run(step, **config)
    assert result.status == "failed"
    assert "at stage 'limits'" in result.feedback
    assert result.step_history[-1].output == LIMA_JSON[:20]
    assert agent.closed
    assert agent.sent < 20 + 70


@pytest.mark.trio
async def test_bytes_are_counted_as_bytes():
    """A character of three bytes is three bytes."""
    result = await run(streams(*"北" * 10), settings={"aros": {"streaming": {"max_bytes": 29}}})
    assert result.step_history[-1].output == "北" * 9


@pytest.mark.trio
async def test_a_stream_that_takes_too_long_ends(autojump_clock):
    """The time of a stream is bounded as well, and the producer closed there and then."""
    agent = Pieces(*LIMA_JSON, pause=1.0)
    step = Step("say", agent, processing={"schema": City})
    begun = trio.current_time()
    result = await run(step, settings={"aros": {"streaming": {"max_seconds": 4.5}}})
    assert trio.current_time() - begun == pytest.approx(4.5)
    assert "longer than 4.5 seconds" in result.feedback
    assert result.step_history[-1].output == LIMA_JSON[:4]
    assert agent.closed


@pytest.mark.trio
async def test_a_model_stream_past_its_bound_fails():
    """The bounds hold for model agents, too, and there is no second call."""
    played = Played(LIMA_JSON)
    step = Step("say", Agent(played.model), processing={"schema": City})
    _, result = await watch(step, settings={"aros": {"streaming": {"max_chunks": 2}}})
    assert "at stage 'limits'" in result.feedback
    assert len(played.asked) == 1


@pytest.mark.trio
async def test_a_stream_that_breaks_keeps_what_it_delivered():
    """An error of the agent's own is the failure, with the partial text."""
    chunks, result = await watch(streams(LIMA_JSON, error=OSError("gone")))
    assert result.step_history[0].feedback == "Agent execution failed with OSError: gone"
    assert result.step_history[-1].output == LIMA_JSON
    assert len(chunks) == 1


@pytest.mark.trio
async def test_leaving_a_watched_run_closes_the_producer():
    """Who stops watching stops the stream."""
    agent = Pieces(*LIMA_JSON * 100)
    async with Flujo(Step("say", agent, processing={"schema": City})).run_async("x") as handle:
        async for outcome in handle:
            assert isinstance(outcome, Chunk)
            break
    assert agent.closed


# --- size ---------------------------------------------------------------------------------------------------


def many(count, size):
    async def produce(data):
        piece = "x" * size
        yield '{"text": "'
        for _ in range(count):
            yield piece
        yield '"}'

    limits = {"aros": {"fallback": {"max_stages": 0}, "streaming": {"max_bytes": 10**9}}}
    return functools.partial(run, Step("say", produce, processing={"schema": {"type": "object"}}), settings=limits)


def cpu_seconds(make):
    begun = time.process_time()
    trio.run(make)
    return time.process_time() - begun


def test_time_is_linear_in_the_number_of_chunks():
    """Four times the chunks take about four times as long."""
    cpu_seconds(many(1000, 10))
    few, lots = cpu_seconds(many(20_000, 10)), cpu_seconds(many(80_000, 10))
    assert lots < 12 * few  # the square would be sixteen times


@pytest.mark.slow
def test_fifty_megabytes_in_100_000_chunks_are_flat_beyond_the_buffer():
    """The peak is the text itself, once in pieces and once as a whole."""
    size = 500 * 100_000
    tracemalloc.start()
    try:
        result = trio.run(many(100_000, 500))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert result.output == {"text": "x" * size}
    assert sys.getsizeof("x" * size) < peak < 2.5 * size
