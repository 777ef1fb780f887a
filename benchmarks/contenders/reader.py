"""Something that turns a model's text into a value; which one, the first argument says."""

import importlib
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.protocol import now, serve
from benchmarks.texts import SCHEMA, broken, valid

Reader = Callable[[str], Any]


def ours() -> Reader:
    return importlib.import_module("flujo_actors").parse_and_validate


def ours_with_schema() -> Reader:
    structured = importlib.import_module("flujo_actors.structured")
    schema = structured.compile_schema(SCHEMA)
    return lambda text: structured.parse_and_validate(text, schema)


def json_repair() -> Reader:
    return importlib.import_module("json_repair").loads


def fast_json_repair() -> Reader:
    return importlib.import_module("fast_json_repair").loads


def instructor() -> Reader:
    extract = importlib.import_module("instructor.utils").extract_json_from_codeblock
    from_json = importlib.import_module("pydantic_core").from_json
    return lambda text: from_json(extract(text))


def langchain() -> Reader:
    return importlib.import_module("langchain_core.output_parsers").JsonOutputParser().parse


READERS = {
    "flujo-actors": (ours, "flujo-actors"),
    "flujo-actors-with-schema": (ours_with_schema, "flujo-actors"),
    "json_repair": (json_repair, "json-repair"),
    "fast_json_repair": (fast_json_repair, "fast-json-repair"),
    "instructor": (instructor, "instructor"),
    "langchain": (langchain, "langchain-core"),
}


def attempt(reader: Reader, text: str) -> Any:
    """What was read, or the error: a text that cannot be read costs time too."""
    try:
        return reader(text)
    except (ValueError, RecursionError) as error:
        return error


def reading(reader: Reader, texts: list[str], rounds: int, size: int) -> float:
    """Seconds for as many characters as were asked for."""
    begun = now()
    for _ in range(rounds):
        for text in texts:
            attempt(reader, text)
    return (now() - begun) * size / sum(map(len, texts))


def read_broken(reader: Reader, size: int, rounds: int) -> float:
    return reading(reader, [text for text, _ in broken(size).values()], rounds, size)


def misread(reader: Reader, size: int, rounds: int) -> float:
    """How many of the damaged texts are not read as they were meant."""
    wrong = sum(attempt(reader, text) != value for text, value in broken(10_000).values())
    return float(wrong * size * rounds)


if __name__ == "__main__":
    make, package = READERS[sys.argv[1]]
    read = make()
    serve(
        {
            "read_valid": lambda size, rounds: reading(read, [valid(size)], rounds, size),
            "read_broken": lambda size, rounds: read_broken(read, size, rounds),
            "misread": lambda size, rounds: misread(read, size, rounds),
        },
        packages=[package],
    )
