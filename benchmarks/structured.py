"""Structured output: speed of reading valid and broken text, growth with size and with chunk count.

Each function returns rows (dicts) for the bench driver; run the file to print them. Libraries that are not installed
are left out of the comparison.
"""

from __future__ import annotations

import importlib
import json
import random
import re
import time
from collections.abc import Callable
from typing import Any

import fast_json_repair
import json_repair
from pydantic import BaseModel

from flujo_actors.structured import Preview, StreamBuffer, compile_schema, parse_and_validate

Row = dict[str, Any]
Reader = Callable[[str], Any]
TEN_KB = 10_000


class Order(BaseModel):
    id: int
    title: str
    done: bool
    price: float
    tags: list[str]
    note: str


class Orders(BaseModel):
    orders: list[Order]


SCHEMA = compile_schema(Orders.model_json_schema())


def orders(size: int) -> dict[str, Any]:
    """A value whose JSON is about `size` characters long."""
    chance, rows = random.Random(7), []
    for number in range(max(1, size // 190)):
        rows.append(
            {
                "id": number,
                "title": f"Order number {number} arrived",
                "done": number % 2 == 0,
                "price": round(chance.random() * 1000, 2),
                "tags": ["alpha", "beta", f"gamma {number}"],
                "note": "Please call back before 5 pm; see the note, it's there",
            }
        )
    return {"orders": rows}


def broken(size: int) -> dict[str, str]:
    """The same value, damaged in ways that models damage it."""
    value = orders(size)
    text = json.dumps(value)
    return {
        "trailing commas": text.replace("}", ",}").replace('"]', '",]'),
        "truncated": text[:-3],
        "Python repr": repr(value),
        "bare keys": re.sub(r'"(\w+)":', r"\1:", text),
        "comments": json.dumps(value, indent=1).replace(",\n", ", // note\n"),
        "inner quotes": text.replace("Order number", 'Order "number"'),
        "wide punctuation": text.replace('": ', '"：').replace(', "', '，"'),
        "fence and prose": f"Here it is:\n```json\n{text}\n```\nHope it helps.",
    }


# --- the others -----------------------------------------------------------------------------------------------


def _instructor() -> Reader | None:
    try:
        extract = importlib.import_module("instructor.utils").extract_json_from_codeblock
    except (ImportError, AttributeError):
        return None
    return lambda text: Orders.model_validate_json(extract(text))


def _langchain() -> Reader | None:
    try:
        parser = importlib.import_module("langchain_core.output_parsers").JsonOutputParser()
    except (ImportError, AttributeError):
        return None
    read: Reader = parser.parse
    return read


def readers() -> dict[str, Reader]:
    """Everything that turns a model's text into a value, ours first."""
    ours: dict[str, Reader | None] = {
        "flujo_actors": parse_and_validate,
        "flujo_actors with a schema": lambda text: parse_and_validate(text, SCHEMA),
        "fast_json_repair": fast_json_repair.loads,
        "json_repair": json_repair.loads,
        "instructor": _instructor(),
        "langchain": _langchain(),
    }
    return {name: reader for name, reader in ours.items() if reader is not None}


# --- measuring ------------------------------------------------------------------------------------------------


def best_seconds(work: Callable[[], Any], budget_s: float = 0.2) -> float:
    """The fastest of as many runs as fit into the budget, at least two."""
    best, until, runs = float("inf"), time.perf_counter() + budget_s, 0
    while runs < 2 or time.perf_counter() < until:
        started = time.perf_counter()
        work()
        best, runs = min(best, time.perf_counter() - started), runs + 1
    return best


def _attempt(reader: Reader, text: str) -> Any:
    try:
        return reader(text)
    except (ValueError, RecursionError) as error:
        return error


def _row(bench: str, case: str, name: str, reader: Reader, text: str, value: Any) -> Row:
    seconds = best_seconds(lambda: _attempt(reader, text))
    found = _attempt(reader, text)
    found = found.model_dump() if isinstance(found, BaseModel) else found
    rate = round(len(text) / seconds / 1e6, 2)
    return {"bench": bench, "case": case, "reader": name, "mb_per_s": rate, "right": found == value}


def valid_speed() -> list[Row]:
    """Valid 10 kB; ours must reach 80 MB/s."""
    value = orders(TEN_KB)
    return [_row("valid 10 kB", "json", n, r, json.dumps(value), value) for n, r in readers().items()]


def broken_speed() -> list[Row]:
    """Broken 10 kB; ours must reach 2 MB/s."""
    value = orders(TEN_KB)
    rows = []
    for case, text in broken(TEN_KB).items():
        wanted = (
            json.loads(json.dumps(value).replace("Order number", 'Order \\"number\\"'))
            if case == "inner quotes"
            else value
        )
        rows += [_row("broken 10 kB", case, name, reader, text, wanted) for name, reader in readers().items()]
    return rows


def growth_with_size() -> list[Row]:
    """Milliseconds for ever larger broken texts: the cost of a character must not grow."""
    rows = []
    for size in (1_000, 10_000, 100_000):
        text = broken(size)["trailing commas"]
        for name, reader in readers().items():
            ms = 1000 * best_seconds(lambda reader=reader, text=text: _attempt(reader, text), 0.1)  # type: ignore[misc]
            rows.append({"bench": "growth with size", "chars": len(text), "reader": name, "ms": round(ms, 3)})
    return rows


def growth_with_chunks() -> list[Row]:
    """Milliseconds to buffer and preview a stream of ever more chunks."""
    rows = []
    for chunks in (1_000, 10_000, 100_000):
        ms = 1000 * best_seconds(lambda chunks=chunks: _stream(chunks), 0.1)  # type: ignore[misc]
        rows.append({"bench": "growth with chunks", "chunks": chunks, "reader": "flujo_actors", "ms": round(ms, 2)})
    return rows


def _stream(chunks: int) -> str:
    buffer, preview = StreamBuffer(), Preview()
    buffer.feed('{"text": "')
    for _ in range(chunks):
        buffer.feed("twenty characters or")
        preview.partial_value(buffer)
    return buffer.finish()


BENCHES: tuple[Callable[[], list[Row]], ...] = (valid_speed, broken_speed, growth_with_size, growth_with_chunks)


def main() -> None:
    for bench in BENCHES:
        for row in bench():
            print("  ".join(f"{key}={value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
