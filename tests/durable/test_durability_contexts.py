"""Stored contexts: one full copy, then changes alone, and every state can be read."""

from __future__ import annotations

import json
import math
import sqlite3
from contextlib import closing
from typing import Any

import attrs
import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from flujo_actors import Failure, Flujo, MemoryStore, Pipeline, RunClient, SqliteStore, Step
from flujo_actors._core.records.context_patches import difference, patched
from flujo_actors._core.step_paths import StepPath
from kit.durable_places import Place


@attrs.define
class Notes:
    """A context that grows."""

    log: list[str] = attrs.field(factory=list)
    text: str = ""
    turns: int = 0


async def read(x: int, *, context: Notes) -> int:
    return x + len(context.log) * 0 + 1


async def write(x: int, *, context: Notes) -> int:
    context.log.append(f"{x:05}" + "y" * 995)
    context.turns += 1
    return x + 1


def loop(turns: int, step: Any = write) -> Any:
    return Step.loop_until("turns", Step("turn", step), until=lambda x, _: x >= turns, max_loops=turns)


def stored_bytes(store: Any, run_id: str) -> int:
    return sum(len(record.body) for record in store.read(run_id))


def test_a_context_that_is_only_read_is_stored_once(place: Place) -> None:
    """Steps with a `context` parameter that leave it equal write none."""
    store = place.open()
    steps = Pipeline(Step(f"s{number}", read) for number in range(50))
    given = {"log": ["z" * 1000] * 100}
    Flujo(steps, context_model=Notes, initial_context_data=given, store=store).run(0, run_id="r")
    assert stored_bytes(store, "r") < 120_000
    assert not [each for each in store.read("r") if each.kind == "settled" and "context" in json.loads(each.body)]
    assert RunClient(store).state("r").context == Notes(log=["z" * 1000] * 100)


@pytest.mark.parametrize("kind", ["list", "text"])
def test_stored_bytes_grow_with_the_changes_alone(kind: str) -> None:
    """A context that grows by 1 KB a turn is stored in linear space."""

    async def lengthen(x: int, *, context: Notes) -> int:
        context.text += "y" * 1000
        return x + 1

    sizes = {}
    for turns in (50, 200, 800):
        store = MemoryStore()
        step = write if kind == "list" else lengthen
        assert Flujo(loop(turns, step), context_model=Notes, store=store).run(0, run_id="r").success
        sizes[turns] = stored_bytes(store, "r")
    assert sizes[800] < 10_000 * 800
    assert math.log(sizes[800] / sizes[200], 4) <= 1.1


@pytest.mark.slow
def test_a_long_run_stores_its_context_in_linear_space() -> None:
    """From 400 to 4,000 turns, bytes grow like the turns."""

    async def note(x: int, *, context: Notes) -> int:
        context.log.append(f"{x:050}")
        return x + 1

    sizes = {}
    for turns in (400, 4_000):
        store = MemoryStore()
        assert Flujo(loop(turns, note), context_model=Notes, store=store).run(0, run_id="r").success
        sizes[turns] = stored_bytes(store, "r")
    assert math.log10(sizes[4_000] / sizes[400]) <= 1.1


def test_every_state_has_the_context_of_its_time(place: Place) -> None:
    """`state_at` returns the context after the last settled step, from full copies and patches alike."""
    store = place.open()
    steps = Pipeline(Step(f"s{number}", write if number % 3 else read) for number in range(30))
    Flujo(steps, context_model=Notes, store=store).run(0, run_id="r")
    client = RunClient(store)
    turns = 0
    for record in store.read("r"):
        turns += record.kind == "settled" and int(record.path.lstrip("s")) % 3 > 0
        assert client.state_at("r", record.seq).context.turns == turns
    assert client.state("r").context.log == [f"{x:05}" + "y" * 995 for x in range(30) if x % 3]


def test_a_single_record_shows_its_whole_context(place: Place) -> None:
    """A client that reads one record needs no other one."""
    store = place.open()
    Flujo(loop(9), context_model=Notes, store=store).run(0, run_id="r")
    last = [each for each in store.read("r") if each.kind == "settled"][-1]
    assert "context" not in json.loads(last.body)
    shown = json.loads(RunClient(store).record("r", last.seq).body)
    assert shown["context"]["value"]["turns"] == 9
    assert len(shown["context"]["value"]["log"]) == 9


def test_a_resumed_run_continues_with_its_patched_context(place: Place) -> None:
    """The next session reads the context, and stores patches of it."""
    store = place.open()
    crash = [True]

    async def once(x: int, *, context: Notes) -> int:
        if crash:
            raise KeyboardInterrupt
        return await write(x, context=context)

    flujo = Flujo(loop(9) >> Step("once", once) >> Step("last", write), context_model=Notes, store=store)
    with pytest.raises(KeyboardInterrupt):
        flujo.run(0, run_id="r")
    crash.clear()
    before = stored_bytes(store, "r")
    result = Flujo(loop(9) >> Step("once", once) >> Step("last", write), context_model=Notes, store=store).resume("r")
    assert (result.final_context.turns, len(result.final_context.log)) == (11, 11)
    assert stored_bytes(store, "r") - before < 4_000
    assert RunClient(store).state("r").context == result.final_context


def test_a_dialog_stores_its_context_in_linear_space(place: Place) -> None:
    """Every answer is another session, and none of them stores the context again."""
    store = place.open()
    ask = Step("note", write) >> Step.human_in_the_loop("ask", "more?", input_schema=int)
    dialog = Step.loop_until("dialog", ask, until=lambda x, _: x >= 20, max_loops=30)
    flujo = Flujo(dialog, context_model=Notes, store=store)
    result = flujo.run(0, run_id="r")
    for turn in range(1, 21):
        assert result.status == "paused"
        result = flujo.resume(str(result.state_token), turn)
    assert (result.status, result.final_context.turns) == ("completed", 20)
    assert stored_bytes(store, "r") < 90_000


def test_a_retry_keeps_the_contexts_that_refer_to_dropped_records(place: Place) -> None:
    """A handler's record is dropped by a retry, though a later patch of another branch refers to it."""
    store, broken = place.open(), [True]
    handled, settled = trio.Event(), trio.Event()

    async def fragile(x: int) -> int:
        if broken:
            raise ValueError("not yet")
        return x

    async def note(x: object, *, context: Notes) -> object:
        context.log.append("handled" * 100)
        return x

    async def wait(x: object) -> object:
        handled.set()
        await settled.wait()
        return x

    async def after(x: int, *, context: Notes) -> int:
        await handled.wait()
        context.turns += 1
        return x

    async def end(x: int) -> int:
        settled.set()
        return await trio.sleep_forever() if broken else x

    bad = Step("bad", fragile, on_failure=[Step("note", note), Step("wait", wait)])
    branches: dict[str, Any] = {"bad": bad, "good": Step("after", after) >> Step("end", end)}
    flujo = Flujo(loop(5) >> Step.parallel("both", branches), context_model=Notes, store=store)
    assert flujo.run(0, run_id="r").status == "failed"
    broken.clear()
    result = flujo.retry("r")
    assert (result.status, result.final_context.turns, len(result.final_context.log)) == ("completed", 6, 5)
    client = RunClient(store)
    forked = client.fork("r", len(store.read("r")))
    assert client.state(forked).context == client.state("r").context == result.final_context
    assert flujo.resume(forked).final_context == result.final_context


def test_a_refused_commit_leaves_no_context_behind(tmp_path: Any) -> None:
    """Patches refer to contexts in the store alone, never to one that was rolled back."""
    store = SqliteStore(tmp_path / "runs.db")
    with closing(sqlite3.connect(tmp_path / "runs.db")) as db:
        db.execute("CREATE TABLE a (id INTEGER PRIMARY KEY)")
        db.execute("CREATE TABLE b (of INTEGER REFERENCES a (id) DEFERRABLE INITIALLY DEFERRED)")
        db.commit()

    async def refused(x: int, *, context: Notes, transaction: Any) -> int:
        context.log.append("lost" * 100)
        transaction.execute("PRAGMA foreign_keys = ON")
        transaction.execute("INSERT INTO b VALUES (7)")
        return x

    both = Step.parallel("both", {"bad": Step("bad", refused), "good": Step("good", read)}, on_branch_failure="ignore")
    first, last = Step("first", write), Step("last", write, input=9)
    given = {"log": ["z" * 1000] * 20}
    flujo = Flujo(first >> both >> last, context_model=Notes, initial_context_data=given, store=store)
    result = flujo.run(0, run_id="r")
    assert (result.success, isinstance(RunClient(store).outcomes("r")[StepPath("both/bad")], Failure)) == (True, True)
    assert RunClient(store).state("r").context == result.final_context
    assert not any(line.startswith("lost") for line in result.final_context.log)


def test_contexts_of_branches_are_read_back_one_by_one(tmp_path: Any) -> None:
    """Patches of concurrent branches refer to each other's contexts, or to full copies."""
    store = SqliteStore(tmp_path / "runs.db")
    crash = [True]

    async def end(x: object, *, context: Notes) -> int:
        if crash:
            raise KeyboardInterrupt
        return len(context.log)

    def flujo() -> Flujo[Any, Any]:
        branches = {f"b{number}": loop(4 + number) for number in range(3)}
        both = Step.parallel("all", branches, merge="keep_first")
        return Flujo(loop(3) >> both >> Step("end", end), context_model=Notes, store=store)

    with pytest.raises(KeyboardInterrupt):
        flujo().run(0, run_id="r")
    crash.clear()
    expected = RunClient(store).state("r").context
    result = flujo().resume("r")
    assert result.output == len(expected.log)
    assert result.final_context == expected


def test_a_window_of_the_last_turns_is_stored_by_its_changes() -> None:
    """A list that drops its first item and gains one is no new list."""
    store = MemoryStore()

    async def slide(x: int, *, context: Notes) -> int:
        context.log = [*context.log, f"{x:05}" + "y" * 995][-20:]
        return x + 1

    result = Flujo(loop(200, slide), context_model=Notes, store=store).run(0, run_id="r")
    assert RunClient(store).state("r").context == result.final_context
    assert stored_bytes(store, "r") < 200 * 3_000


values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, -0.0, 1.0, 2.5]) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
    max_leaves=20,
)


@given(old=values, new=values)
@example(old=[1, 2, 3], new=[2, 3, 4])
@example(old=[1, 1, 2], new=[1, 2])
@example(old=[1, 2, 1, 3], new=[2, 1])
def test_a_difference_leads_from_one_value_to_the_other(old: Any, new: Any) -> None:
    """Exactly: types, the order of keys and the sign of zero included; the old value stays as it is."""
    before, change = json.dumps(old), difference(old, new)
    assert (change is None) == (before == json.dumps(new))
    stored = None if change is None else json.loads(json.dumps(change))
    assert json.dumps(patched(old, stored)) == json.dumps(new)
    assert json.dumps(old) == before
