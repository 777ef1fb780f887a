"""Input made to hang, crash or exhaust: an answer, or a refusal, in under half a second."""

import threading
import time
from collections.abc import Callable

import pytest

from flujo_actors.errors import StructuredOutputError
from flujo_actors.structured import extract_from_text, normalize_json_text, parse_and_validate

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "string"}},
    "required": ["a"],
    "additionalProperties": False,
}
HOSTILE = {
    "100,000 brackets": "[" * 100_000,
    "balanced brackets": "[" * 100_000 + "]" * 100_000,
    "1 MB of quotes": '"' * 1_000_000,
    "1 MB of backslashes": "\\" * 1_000_000,
    "quotes in an object": '{"a": ' + '"' * 1_000_000,
    "backslashes in a string": '{"a": "' + "\\" * 1_000_000,
    "an unterminated string": '{"a": "' + "x" * 1_000_000,
    "200 kB of object openers": '{"a":' * 40_000,
    "5 MB of prose": "Lorem ipsum dolor sit amet. " * 185_000,
    "5 MB of stray braces": "see {x} and [y]. " * 300_000,
    "5 MB of open braces": "{" * 5_000_000,
    "a lone surrogate": '{"a": "\ud800"}',
    "an escaped lone surrogate": '{"a": "\\ud800"}',
    "5,000 digits": '{"a": ' + "1" * 5_000 + "}",
    "NaN": '{"a": NaN}',
    "tags": "<" * 1_000_000,
    "unclosed thinking": "<think>" * 100_000,
    "many objects": '{"b": 1,} ' * 100_000,
    "endless numbers": "[" + "1, " * 300_000,
    "quote and comma": '{"a": "' + '",' * 500_000,
    "quote and colon": '{"a": "' + '":' * 300_000,
    "quotes far apart": '{"a": "x' + ('"' + " " * 2_000) * 500,
    "bare words": '{"a": ' + "b, " * 300_000,
    "comments": "{/*" * 300_000,
    "closers": '{"a": "b"' + "}" * 1_000_000,
    "digits in a list": "[1, " + "9" * 4_400 + "a]",
    "digits and points": "[1, " + "1.25" * 5_000 + "]",
    "words without commas": "[1, " + "truefalse" * 5_000 + "x]",
    "an empty fence": "```json" + " " * 19_000,
    "fences": "```" * 6_000 + "{",
    "blanks behind marks": '["a", "b' + ("," + " " * 1_000) * 18,
    "escaped quotes": '\\"' * 9_000,
    "brackets and quotes in a string": '{"a": "' + "}“" * 9_000,
    "escaped openers": '{\\"a\\": ' * 100_000,
}


def refusal_of(read: Callable[[str], object], text: str) -> StructuredOutputError | None:
    try:
        read(text)
    except StructuredOutputError as error:
        return error
    return None


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("schema", [None, SCHEMA])
def test_hostile_input_is_answered_soon(name: str, schema: dict[str, object] | None) -> None:
    """Whatever the answer, it comes soon, and a refusal is the documented error."""
    started = time.thread_time()  # what it costs, however busy the machine is
    error = refusal_of(lambda text: parse_and_validate(text, schema), HOSTILE[name])
    assert time.thread_time() - started < 5  # below half a second on a desktop
    assert error is None or (error.stage in ("limits", "parse", "validate") and len(str(error)) < 2_000)


@pytest.mark.parametrize("name", HOSTILE)
def test_normalizing_and_extracting_hostile_input_ends_too(name: str) -> None:
    """The other two ways into a text are bounded in the same way."""
    started = time.thread_time()
    refusal_of(normalize_json_text, HOSTILE[name])
    refusal_of(lambda text: extract_from_text(text, SCHEMA), HOSTILE[name])
    assert time.thread_time() - started < 10


@pytest.mark.parametrize(
    "name", ["5 MB of prose", "5 MB of stray braces", "an unterminated string", "200 kB of object openers"]
)
def test_a_worker_thread_does_not_hold_the_interpreter(name: str) -> None:
    """While a thread reads, another one waits for some 20 ms at most; half a second is for very slow machines."""
    assert any(longest_pause_during(HOSTILE[name]) < 0.5 for _ in range(10))


def longest_pause_during(text: str) -> float:
    def read() -> None:
        refusal_of(lambda text: parse_and_validate(text, SCHEMA), text)

    worker = threading.Thread(target=read)
    worker.start()
    longest, last = 0.0, time.perf_counter()
    while worker.is_alive():
        time.sleep(0)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    worker.join()
    return longest
