"""Hostile answers: an end in half a second of work, and nobody else held up meanwhile."""

from __future__ import annotations

import time

import pytest
import trio
from said_by_models import CITY_SCHEMA, City, CityAttrs, run, says, watch

from flujo_actors import Step

pytestmark = pytest.mark.slow

HOSTILE = {
    "100,000 opening brackets": "[" * 100_000,
    "100,000 opening braces": "{" * 100_000,
    "balanced brackets": "[" * 50_000 + "]" * 50_000,
    "1 MB of quotes": '"' * 1_000_000,
    "1 MB of single quotes": "'" * 1_000_000,
    "1 MB of backslashes": "\\" * 1_000_000,
    "escaped quotes": '"\\' * 500_000,
    "an unterminated string of 1 MB": '{"name": "' + "x" * 1_000_000,
    "an unterminated string of many lines": '{"name": "' + "x y\n" * 250_000,
    "200 kB of keys": '{"a":' * 40_000,
    "5 MB of prose": "The quick brown fox jumps over the lazy dog. " * 111_111,
    "prose with braces": "See {fig 1} and [2] in the text: yes. " * 131_000,
    "lone surrogates": '{"name": "\ud800\udfff", "people": 1}' + "\ud800" * 100_000,
    "an escaped lone surrogate": '{"name": "\\ud800", "people": 1}',
    "a number of 5,000 digits": '{"name": "x", "people": ' + "9" * 5_000 + "}",
    "5,000 digits and a dot": '"people":' + "1" * 5_000 + ".<a>",
    "NaN": '{"name": "x", "people": NaN}',
    "infinities": "[NaN, Infinity, -Infinity]",
    "20 kB of commas": "{" + "," * 19_000,
    "empty lists": "[]" * 100_000,
    "closers": '{"a":' + "]" * 100_000 + "x",
    "words in a list": "[1," + "x, " * 100_000,
    "a million numbers": "[" + "1," * 1_000_000 + "1]",
    "strange keys": "{" + ",".join(f'"k{n}":{n}' for n in range(30_000)) + "}",
    "unclosed comments": "{" + "/*{" * 50_000,
    "fences": "```" * 100_000,
    "thoughts": "<think></think>" * 50_000,
    "odd quotes": "{“]" * 50_000,
}


class Heart:
    """Beats while others work; `longest` is the most work that was done between two beats.

    Work is counted in seconds of this process, not by the clock: other processes do not count.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    async def beat(self) -> None:
        last = time.process_time()
        while True:
            await trio.sleep(0.0005)
            now = time.process_time()
            self.longest, last = max(self.longest, now - last), now


async def measured(step):
    heart, begun = Heart(), time.process_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heart.beat)
        await trio.sleep(0.002)
        begun, heart.longest = time.process_time(), 0.0
        result = await run(step, 1)
        took = time.process_time() - begun
        nursery.cancel_scope.cancel()
    return result, took, heart.longest


@pytest.mark.parametrize("schema", [City, list[City]], ids=["model", "list"])
@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_answer_is_refused_soon_and_holds_up_nobody(text, schema):
    """A third of a second of work on a desktop, and others have their turn; the bounds are for very slow machines."""
    trio.run(run, says("{}", schema=schema), 1)  # what is loaded and compiled at first use
    tries = [trio.run(measured, says(text, schema=schema))]
    while (tries[-1][1] > 5 or tries[-1][2] > 0.5) and len(tries) < 4:
        tries.append(trio.run(measured, says(text, schema=schema)))
    assert all(result.success and result.step_history[-1].metadata["degraded"] for result, _, _ in tries)
    assert min(took for _, took, _ in tries) < 5
    assert min(blocked for _, _, blocked in tries) < 0.5


@pytest.mark.trio
@pytest.mark.parametrize("schema", [City, CityAttrs, CITY_SCHEMA])
async def test_hostile_streams_end_the_same_way(schema):
    """In pieces, with somebody watching, too."""

    async def produce(data):
        for _ in range(2_000):
            yield '{"a":[' * 5

    _, result = await watch(Step("say", produce, processing={"schema": schema}), 1)
    assert result.step_history[-1].metadata["degraded"]


def test_a_large_valid_answer_is_read_without_holding_up_others():
    """A string of 5 MB is a value like any other."""
    text = '{"name": "' + "x" * 5_000_000 + '", "people": 1}'
    result, took, blocked = trio.run(measured, says(text))
    assert result.output.people == 1
    assert took < 5
    assert blocked < 1
