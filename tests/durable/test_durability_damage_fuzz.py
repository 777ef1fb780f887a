"""Records damaged at random, most of them still JSON: a typed error or a value, never anything else."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
import json
import logging
import random
import re
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from flujo_actors import (
    Backoff,
    CorruptRecord,
    FingerprintMismatch,
    Flujo,
    NotPaused,
    Pipeline,
    RecordVersionError,
    RunClient,
    Step,
    StepResult,
)
from flujo_actors.stores.sqlite._store import SqliteStore

CASES = 150
TYPED = (CorruptRecord, FingerprintMismatch, NotPaused, RecordVersionError)

ODD_VALUES: list[Any] = [
    *(None, True, -1, 1.5, 10**400, "", "x", "~aX", [], {}, [[[]]], {"kind": 5}),
    {"$": "bytes", "value": "MDE*"},
    {"$": "model", "type": "x", "value": 1},
    {"$": "error", "value": {}},
    {"$": "dict", "value": [[[], 1]]},
    {"$": 5},
]


@dataclasses.dataclass
class Note:
    text: str
    tags: tuple[Any, ...] = ()


def rich() -> Pipeline:
    """Values of many kinds, failed attempts, usage, branches, turns, an answer and a question."""
    calls: list[int] = []

    async def make(data: int) -> dict[Any, Any]:
        return {"b": b"0123456789", "n": Note("hi", ("a", 1)), 5: {1, 2}, "d": dt.datetime(2020, 1, 1)}

    async def flaky(data: Any, *, context: Any) -> StepResult:
        calls.append(1)
        context.seen = b"abc"
        if len(calls) == 1:
            raise ValueError("not yet")
        return StepResult(name="flaky", output=2, token_counts=5, cost_usd=0.5, metadata={"m": b"x"})

    async def double(data: int) -> int:
        return data * 2

    async def fail(data: int) -> int:
        raise KeyError(data)

    branches = {"good": Step("good", double), "bad": Step("bad", fail)}
    return (
        Step("make", make)
        >> Step("flaky", flaky, max_retries=1, backoff=Backoff.none())
        >> Step.parallel("stage", branches, on_branch_failure="ignore")
        >> Step.map_over("map", Step("each", double), items=[1, 2])
        >> Step.human_in_the_loop("first", "first?")
        >> Step.human_in_the_loop("second", "second?", input_schema={"type": "integer"})
    )


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run that waits at its second question, and that question's token."""
    path = tmp_path_factory.mktemp("sound") / "runs.db"
    store = SqliteStore(path, synchronous="OFF")
    flujo = Flujo(rich(), store=store)
    asked = flujo.resume(flujo.run(1, run_id="a").state_token, {"said": b"yes"})
    store.close()
    assert asked.state_token is not None
    return path, asked.state_token


def places_in(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    keys = list(data) if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield (*place, key)
        yield from places_in(data[key], (*place, key))


def damaged(body: str, rng: random.Random) -> str:
    """The body with one character or one part of it changed."""
    if rng.random() < 0.3:
        at = rng.randrange(len(body))
        return body[:at] + rng.choice(["", rng.choice('{}[]":,0a$~'), body[at] * 2]) + body[at + 1 :]
    data = json.loads(body)
    *above, last = rng.choice(list(places_in(data)))
    inner = data
    for key in above:
        inner = inner[key]
    if rng.random() < 0.3:
        del inner[last]
    else:
        inner[last] = copy.deepcopy(rng.choice(ODD_VALUES))
    return json.dumps(data)


def damage(path: Path, rng: random.Random) -> None:
    """Change one record in one way."""
    with closing(sqlite3.connect(path)) as db, db:
        key, body = rng.choice(db.execute("SELECT id, body FROM flujo_records").fetchall())
        odd = rng.choice(["~aX/y", "x/~t", "settled", "paused", "answered", "unit", 5])
        column, value = rng.choice([*[("body", damaged(body, rng))] * 6, ("path", odd), ("kind", odd)])
        db.execute(f"UPDATE flujo_records SET {column} = ? WHERE id = ?", (value, key))


def ways_to_read(store: SqliteStore, token: str) -> list[Callable[[], object]]:
    client, flujo = RunClient(store), Flujo(rich(), store=store)
    return [
        lambda: client.state("a"),
        lambda: client.outcomes("a"),
        client.prompts,
        lambda: flujo.resume("a"),
        flujo.recover,
        lambda: flujo.resume(token, 7),
    ]


def refusal(read: Callable[[], object]) -> Exception | None:
    """The typed error that reading ended in; any other is raised."""
    try:
        read()
    except TYPED as error:
        return error
    return None


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_a_record_damaged_at_random_is_a_value_or_a_typed_error(
    sound: tuple[Path, str], tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is damaged, reading, resuming and recovering name the record, or read what still makes sense."""
    caplog.set_level(logging.CRITICAL)
    original, token = sound
    for case in range(CASES // 5):
        path = tmp_path / f"{case}.db"
        shutil.copy(original, path)
        damage(path, random.Random(f"{seed} {case}"))
        with closing(SqliteStore(path, synchronous="OFF")) as store:
            for read in ways_to_read(store, token):
                error = refusal(read)
                named = re.search(r"record \d+ of run 'a'", str(error))
                assert named or not isinstance(error, CorruptRecord), (case, error)
