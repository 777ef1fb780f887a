"""JSON as models write it: valid, and damaged in the ways that models damage it. Standard library only."""

import json
import random
import re
from typing import Any


def orders(size: int) -> dict[str, Any]:
    """A value whose JSON is about `size` characters long."""
    chance = random.Random(7)
    return {"orders": [_order(number, chance) for number in range(max(1, size // 190))]}


def _order(number: int, chance: random.Random) -> dict[str, Any]:
    return {
        "id": number,
        "title": f"Order number {number} arrived",
        "done": number % 2 == 0,
        "price": round(chance.random() * 1000, 2),
        "tags": ["alpha", "beta", f"gamma {number}"],
        "note": "Please call back before 5 pm; see the note, it's there",
    }


SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "orders": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "id": {"type": "integer"},
                    "title": {"type": "string"},
                    "done": {"type": "boolean"},
                    "price": {"type": "number"},
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "note": {"type": "string"},
                },
                "required": ["id", "title", "done", "price", "tags", "note"],
            },
        }
    },
    "required": ["orders"],
}


def valid(size: int) -> str:
    """The value as valid JSON."""
    return json.dumps(orders(size))


def broken(size: int) -> dict[str, tuple[str, Any]]:
    """Damaged texts by the damage, each with the value that was meant."""
    value = orders(size)
    text = json.dumps(value)
    quoted = json.loads(text.replace("Order number", 'Order \\"number\\"'))
    return {
        "trailing commas": (text.replace("}", ",}").replace('"]', '",]'), value),
        "truncated": (text[:-3], value),
        "Python repr": (repr(value), value),
        "bare keys": (re.sub(r'"(\w+)":', r"\1:", text), value),
        "comments": (json.dumps(value, indent=1).replace(",\n", ", // note\n"), value),
        "inner quotes": (text.replace("Order number", 'Order "number"'), quoted),
        "wide punctuation": (text.replace('": ', '"：').replace(', "', '，"'), value),
        "fence and prose": (f"Here it is:\n```json\n{text}\n```\nHope it helps.", value),
    }
