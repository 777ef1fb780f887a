"""A replay runs the present code on recorded results, and has no effect."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.toolsets import FunctionToolset
from rehearsed_agents import Counted, Effects, untyped

from flujo_actors import DeclarationError, Flujo, Replay, RunClient, RunNotFound, Step, step
from flujo_actors.stores import MemoryStore, SqliteStore, Store
from flujo_actors.telemetry import MemorySink

PAYS: list[Any] = [[("pay", {"n": 1})], [("pay", {"n": 2}), ("pay", {"n": 3})], "done"]


def granular(counted: Counted, store: Store, turns: Any = PAYS, **options: Any) -> Flujo[Any, Any]:
    return Flujo(Step.granular("ask", counted.agent(turns, **options)), store=store)


def ended(replay: Replay) -> tuple[str, str | None]:
    """Return the verdict and the sentence; a slow step has a record more, so `N` is the number of the record."""
    found = replay.difference
    return replay.verdict, None if found is None else str(found).replace(f"(record {found.seq})", "(record N)")


# --- unchanged code ---------------------------------------------------------------------------------------


def test_unchanged_code_gives_the_same_run_without_effects() -> None:
    """R1: no request and no execution, of completed, paused and failed runs."""
    counted, effects, store = Counted(), Effects(), MemoryStore()
    flows = {
        "agent": granular(counted, store),
        "steps": Flujo(
            Step("add", effects.add)
            >> Step.loop_until("grow", Step("double", effects.double), lambda n, context: n > 20, max_loops=9)
            >> Step.map_over("each", Step("add", effects.add), items=lambda n, context: [n, n + 1])
            >> Step.parallel("both", {"low": Step("min", min), "high": Step("max", max)}),
            store=store,
        ),
        "branch": Flujo(
            Step.branch_on("way", lambda n, context: n % 2, {0: Step("even", effects.add), 1: effects.double}),
            store=store,
        ),
        "asks": Flujo(Step("add", effects.add) >> Step.human_in_the_loop("sure", "Sure?", int), store=store),
        "fails": Flujo(Step("add", effects.add) >> Step("fail", fail), store=store),
    }
    for number in range(5):
        for name, flujo in flows.items():
            flujo.run(number, run_id=f"{name} {number}")
    before = counted.effects, len(effects.calls)
    replays = [flujo.replay(f"{name} {number}") for name, flujo in flows.items() for number in range(5)]
    assert [ended(each) for each in replays] == [("same", None)] * 25
    assert (counted.effects, len(effects.calls)) == before


def fail(n: Any) -> Any:
    raise ValueError(f"no {n}")


def test_a_replay_lists_executed_and_answered_steps() -> None:
    """Function steps are answered as a whole; composites and granular steps are executed."""
    counted, store = Counted(), MemoryStore()
    flujo = Flujo(Step("first", str) >> Step.granular("ask", counted.agent(PAYS)), store=store)
    flujo.run(1, run_id="r")
    replay = flujo.replay("r")
    assert (replay.run_id, replay.checked, replay.taken, replay.changes) == ("r", ("ask",), ("first",), ())


@pytest.mark.parametrize("run", [trio.run, lambda fn: asyncio.run(fn())])
def test_a_replay_runs_inside_a_loop(run: Any) -> None:
    """`replay_async` returns the same on trio and asyncio."""
    counted, store = Counted(), MemoryStore()
    flujo = granular(counted, store)
    flujo.run("x", run_id="r")

    async def replay() -> Replay:
        return await flujo.replay_async("r")

    assert run(replay).verdict == "same"


def test_a_changed_prompt_is_a_change_and_no_difference() -> None:
    """Recorded responses do not depend on the prompt."""
    counted, store = Counted(), MemoryStore()
    granular(counted, store).run("x", run_id="r")
    replay = granular(counted, store, prompt="Pay more.").replay("r")
    asked = "turn 1 of 'ask' was asked something else"
    assert (replay.verdict, replay.changes) == ("same", ("the prompt of step 'ask' changed", asked))


def test_the_first_turn_with_another_request_is_named() -> None:
    """A live tool returns something else; the record of a request has a hash of 16 digits."""
    counted, store = Counted(), MemoryStore()
    flujo = granular(counted, store, rehearse="live")
    flujo.run("x", run_id="r")
    intents = [json.loads(each.body)["intent"] for each in store.read(untyped("r")) if each.kind == "intent"]
    hashes = [json.loads(intent)["asked"] for intent in intents if "asked" in json.loads(intent)]
    assert (len(hashes), len(set(hashes)), {len(each) for each in hashes}) == (3, 3, {16})
    assert flujo.replay("r").changes == ()
    counted.paid.extend([0] * 50)
    other: Agent[None, str] = Agent(counted.model(PAYS), name="payer", instructions="Pay.")
    other.tool_plain(name="pay", metadata={"rehearse": "live"})(lambda n: "paid" if n == 1 else f"paid {n}")
    replay = Flujo(Step.granular("ask", other), store=store).replay("r")
    assert (replay.verdict, replay.changes[-1]) == ("same", "turn 2 of 'ask' was asked something else")


# --- differences ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "now"), [(5, 2), (50, 5)])
def test_a_changed_condition_is_found_as_loops(limit: int, now: int) -> None:
    """R2: whether the loop ends earlier or later."""
    effects, store = Effects(), MemoryStore()

    def growing(limit: int) -> Flujo[Any, Any]:
        body = Step("double", effects.double)
        return Flujo(Step.loop_until("grow", body, lambda n, context: n > limit, max_loops=9), store=store)

    growing(20).run(2, run_id="r")
    executed = len(effects.calls)
    replay = growing(limit).replay("r")
    assert replay.difference is not None
    assert (replay.verdict, replay.difference.what) == ("different", "loops")
    assert (replay.difference.path, replay.difference.recorded, replay.difference.now) == ("grow", 4, now)
    assert str(replay.difference) == f"step 'grow' ran {now} times, recorded 4 (record {replay.difference.seq})"
    assert len(effects.calls) == executed


def test_another_branch_is_found_as_a_choice() -> None:
    """The other branch has no record, and is not executed."""
    effects, store = Effects(), MemoryStore()

    def choosing(key: str) -> Flujo[Any, Any]:
        ways = {"add": Step("one", effects.add), "double": Step("two", effects.double)}
        return Flujo(Step.branch_on("way", lambda n, context: key, ways), store=store)

    choosing("add").run(2, run_id="r")
    replay = choosing("double").replay("r")
    assert replay.difference is not None
    assert (replay.verdict, replay.difference.what) == ("different", "choice")
    assert str(replay.difference).startswith("step 'way' chose 'double', recorded 'add' (record ")
    assert effects.calls == [2]


def test_a_live_step_is_executed_and_compared() -> None:
    """`rehearse="live"` is for functions without effects."""
    store, effects = MemoryStore(), Effects()

    def flow(add: int) -> Flujo[Any, Any]:
        total = Step("total", untyped(lambda n: n + add), rehearse="live")
        return Flujo(total >> Step("send", effects.add), store=store)

    flow(2).run(40, run_id="r")
    replay = flow(1).replay("r")
    assert ended(replay) == ("different", "step 'total' gave 41, recorded 42 (record N)")
    assert effects.calls == [42]
    assert flow(2).replay("r").checked == ("total",)


def test_live_steps_of_one_call_are_named_by_path() -> None:
    """Items and attempts are no part of the name."""
    store = MemoryStore()

    def flow(add: int) -> Flujo[Any, Any]:
        return Flujo(
            Step.map_over("each", Step.sequence("part", Step("total", untyped(lambda n: n + add)))), store=store
        )

    flow(2).run([1, 2], run_id="r")
    assert flow(1).replay("r").verdict == "same"
    with pytest.raises(DeclarationError, match="live_steps: there is no step 'total' in the pipeline"):
        flow(1).replay("r", live_steps=["total"])
    replay = flow(1).replay("r", live_steps=["each/total"])
    assert ended(replay)[0] == "different"
    with pytest.raises(DeclarationError, match="live_steps must be a list of step paths"):
        flow(1).replay("r", live_steps="each")


def test_a_validator_that_refuses_a_recorded_output_is_found() -> None:
    """The function is not called again."""
    store, effects = MemoryStore(), Effects()
    Flujo(Step("add", effects.add, validators=[lambda n: n > 0]), store=store).run(1, run_id="r")
    replay = Flujo(Step("add", effects.add, validators=[lambda n: n > 5]), store=store).replay("r")
    assert ended(replay) == ("different", "step 'add' is failed, recorded completed (record N)")
    assert effects.calls == [1]


class Notes(BaseModel):
    total: int = 0
    seen: int = 0


def test_a_context_that_is_merged_differently_is_found() -> None:
    """The recorded output is merged by the present code."""
    store = MemoryStore()

    def flow(update: bool) -> Flujo[Any, Any]:
        return Flujo(Step("total", untyped(lambda n: {"total": n}), updates_context=update), Notes, store=store)

    flow(True).run(3, run_id="r")
    assert flow(True).replay("r").verdict == "same"
    replay = flow(False).replay("r")
    assert replay.verdict == "same"  # nothing is merged by a step without the option: its record is used
    live = flow(False).replay("r", live_steps=["total"])
    assert live.difference is not None
    assert (live.verdict, live.difference.what) == ("different", "context")


def test_a_removed_and_an_added_step_are_found() -> None:
    """A step without a record is not executed."""
    store, effects = MemoryStore(), Effects()
    add, double = Step("add", effects.add), Step("double", effects.double)
    Flujo(add >> double, store=store).run(1, run_id="r")
    removed = Flujo(add, store=store).replay("r")
    assert ended(removed) == ("different", "step 'double' did not run, recorded completed (record N)")
    added = Flujo(add >> double >> Step("last", effects.add), store=store).replay("r")
    sentence = "step 'last' is not recorded; declare rehearse=\"live\" if it has no effect"
    assert ended(added) == ("diverged", sentence)
    assert effects.calls == [1, 2]


def test_an_inserted_live_step_changes_the_input_of_the_next() -> None:
    """A function step answers only for its recorded input."""
    store, effects = MemoryStore(), Effects()
    Flujo(Step("add", effects.add) >> Step("send", effects.double), store=store).run(1, run_id="r")
    between = Step("between", untyped(lambda n: n * 10), rehearse="live")
    replay = Flujo(Step("add", effects.add) >> between >> Step("send", effects.double), store=store).replay("r")
    sentence = "step 'send' got another input; declare rehearse=\"live\" if it has no effect"
    assert ended(replay) == ("diverged", sentence)
    assert effects.calls == [1, 2]


# --- tools ------------------------------------------------------------------------------------------------


def test_recorded_retries_failures_and_denials_are_raised_again() -> None:
    """R6: the model's next turn is the recorded one."""
    counted, store = Counted(), MemoryStore()
    turns = [[("pay", {"n": 7})], [("pay", {"n": 8})], [("pay", {"n": 1})], "done"]
    flujo = granular(counted, store, turns)
    flujo.run("x", run_id="r")
    approved = granular(counted, store, [[("pay", {"n": 1})], "denied"], approval=True)
    asked = approved.run("x", run_id="denied")
    approved.resume(asked.state_token or "", {"approved": False, "reason": "too much"})
    before = counted.effects
    assert ended(flujo.replay("r")) == ended(approved.replay("denied")) == ("same", None)
    assert counted.effects == before


def test_a_failed_tool_fails_the_replayed_step_again() -> None:
    """An exception has no result; the failure of its step is recorded."""
    counted, store = Counted(), MemoryStore()
    flujo = granular(counted, store, [[("pay", {"n": 9})], "done"])
    assert flujo.run("x", run_id="r").status == "failed"
    before = counted.effects
    assert ended(flujo.replay("r")) == ("same", None)
    assert counted.effects == before


def test_an_attempt_that_failed_before_a_fallback_fails_again() -> None:
    """A tool or a request that raised has no result; the fallback is replayed."""
    counted, store, turns = Counted(), MemoryStore(), [[("pay", {"n": 9})], "done"]

    def flow(agent: Any, name: str) -> Flujo[Any, Any]:
        fallback = Step.granular("other", counted.agent(PAYS))
        return Flujo(Step.granular(name, agent, max_retries=1, fallback=fallback), store=store)

    flows = {"tool": flow(counted.agent(turns), "tool"), "model": flow(counted.agent([]), "model")}
    for name, flujo in flows.items():
        assert flujo.run("x", run_id=name).status == "completed"
    before = counted.effects
    for name, flujo in flows.items():
        replay = flujo.replay(name)
        assert (ended(replay), replay.checked) == (("same", None), (f"{name}/~f", name))
        assert [run.verdict for run in flujo.rehearse(name, at=name, models="recorded").runs] == ["same"]
    assert counted.effects == before


def test_live_tools_are_executed_and_their_calls_compared() -> None:
    """By the metadata of the tool, or by the declaration of its step."""
    counted, store = Counted(), MemoryStore()
    by_tool = granular(counted, store, rehearse="live")
    by_step = Flujo(Step.granular("ask", counted.agent(PAYS), rehearse="live"), store=store)
    by_tool.run("x", run_id="r")
    for flujo in (by_tool, by_step):
        requests, paid = counted.effects
        assert ended(flujo.replay("r")) == ("same", None)
        assert counted.effects == (requests, paid + 3)
    fewer = Flujo(Step.granular("ask", counted.agent([[("pay", {"n": 1})], "done"], rehearse="live")), store=store)
    fewer.run("x", run_id="fewer")
    assert ended(fewer.replay("fewer")) == ("same", None)


def test_a_live_atomic_agent_makes_no_request() -> None:
    """Only a rehearsal with live models asks it."""
    counted, store = Counted(), MemoryStore()

    def flow(first: str = "x") -> Flujo[Any, Any]:
        asks = Step("ask", counted.agent(["done"]), rehearse="live")
        return Flujo(
            Step("first", untyped(lambda _: first), rehearse="live") >> Step.sequence("part", asks), store=store
        )

    flow().run("x", run_id="r")
    replay = flow().replay("r", live_steps=["part"])
    assert (replay.verdict, replay.taken) == ("same", ("part/ask",))
    sentence = 'a model request was needed after turn 0; models="recorded"'
    assert ended(flow("y").replay("r"))[0] == "different"
    [run] = flow("y").rehearse("r", at="first", models="recorded").runs
    assert (run.verdict, run.reason, counted.requests) == ("diverged", sentence, 1)
    [run] = flow("y").rehearse("r", at="first", max_cost_usd=1.0).runs
    assert (run.verdict, counted.requests) == ("same", 2)


def test_a_tool_that_is_no_longer_called_is_found() -> None:
    """The agent lost its tool: the recorded call is not made."""
    counted, store = Counted(), MemoryStore()
    granular(counted, store).run("x", run_id="r")
    bare: Agent[None, str] = Agent(counted.model(PAYS), name="payer", instructions="Pay.")
    replay = Flujo(Step.granular("ask", bare, max_retries=0), store=store).replay("r")
    assert replay.difference is not None
    assert (replay.verdict, replay.difference.what) == ("different", "tool call")
    assert "did not call tool 'pay' with {\"n\": 1}" in str(replay.difference)


def test_a_toolset_that_must_connect_is_not_entered() -> None:
    """`connect=True` permits it."""
    counted, store = Counted(), MemoryStore()
    entered: list[str] = []

    class Remote(FunctionToolset[None]):
        async def __aenter__(self) -> Remote:
            entered.append("crm")
            return self

    agent: Agent[None, str] = Agent(counted.model(["done"]), name="payer", toolsets=[Remote(id="crm")])
    flujo = Flujo(Step.granular("ask", agent), store=store)
    flujo.run("x", run_id="r")
    entered.clear()
    replay = flujo.replay("r")
    assert ended(replay) == ("diverged", "toolset 'crm' must connect to list its tools; pass connect=True")
    assert entered == []
    assert flujo.replay("r", connect=True).verdict == "same"


# --- questions --------------------------------------------------------------------------------------------


def asking(store: Store, text: str = "Sure?", timeout_s: float | None = None) -> Flujo[Any, Any]:
    question = Step.approval("approve", lambda n, context: f"{text} {n}", timeout_s=timeout_s)
    return Flujo(Step("first", str) >> question >> Step("last", str.upper), store=store)


def test_recorded_answers_are_given_again() -> None:
    """Only to the same question."""
    store = MemoryStore()
    asked = asking(store).run("a", run_id="r")
    assert ended(asking(store).replay("r")) == ("same", None)
    asking(store).resume(asked.state_token or "", "approve")
    assert ended(asking(store).replay("r")) == ("same", None)
    replay = asking(store, "Really?").replay("r")
    assert ended(replay) == ("diverged", "the question at 'approve' is another")
    assert replay.difference is not None
    assert replay.difference.what == "question"


def test_a_run_that_was_canceled_while_it_waited_is_the_same() -> None:
    """It waits for the same answer again; answered steps are listed once."""
    store = MemoryStore()
    asking(store).run("a", run_id="r")
    RunClient(store).cancel("r", "no need")
    replay = asking(store).replay("r")
    assert (ended(replay), replay.checked, replay.taken) == (("same", None), (), ("first",))
    assert asking(store).rehearse("r", at="approve", models="recorded").counts["same"] == 1
    assert ended(asking(store, "Really?").replay("r")) == ("diverged", "the question at 'approve' is another")


def test_a_step_is_checked_or_taken() -> None:
    """Never both, also if the run had several sessions."""
    store = MemoryStore()
    asked = asking(store).run("a", run_id="r")
    asking(store).resume(asked.state_token or "", "approve")
    replay = asking(store).replay("r")
    assert (replay.checked, replay.taken) == (("approve",), ("first", "last"))


class Amount(BaseModel):
    value: int


def test_typed_answers_and_several_questions_are_replayed() -> None:
    """Each session of the recorded run is one of the replay."""
    store = MemoryStore()
    questions = {name: Step.human_in_the_loop(name, f"{name}?", Amount) for name in ("one", "two")}
    flujo = Flujo(Step.parallel("both", questions) >> Step("last", str), store=store)
    paused = flujo.run("x", run_id="r")
    for _ in questions:
        paused = flujo.resume(paused.state_token or "", {"value": 2})
    assert paused.status == "completed"
    assert ended(flujo.replay("r")) == ("same", None)


# --- ended otherwise --------------------------------------------------------------------------------------


def test_a_failed_run_with_compensations_undoes_nothing() -> None:
    """R5: compensations and failure handlers are not called."""
    store, undone, handled = MemoryStore(), list[str](), list[str]()

    async def undo(undo: Any) -> None:
        undone.append(undo.path)

    async def handle(failure: Any) -> None:
        handled.append(failure.path)

    pay = Step("pay", str, compensate=undo)
    flujo = Flujo(pay >> Step("send", untyped(fail), on_failure=handle), store=store)
    assert flujo.run(1, run_id="r").status == "failed"
    assert (undone, handled) == (["pay"], ["send"])
    assert ended(flujo.replay("r")) == ("same", None)
    broken = Flujo(
        pay >> Step("send", untyped(lambda n: 1 / 0), on_failure=handle, rehearse="live"), store=store
    ).replay("r")
    assert broken.verdict == "different"
    assert (undone, handled) == (["pay"], ["send"])


def test_hooks_and_telemetry_hear_nothing() -> None:
    """Neither of the replay nor of its steps."""
    store, heard, sink = MemoryStore(), list[str](), MemorySink()
    settings = {"telemetry": {"sinks": [sink]}}
    flujo = Flujo(Step("first", str), store=store, hooks=lambda payload: heard.append(payload.kind), settings=settings)
    flujo.run(1, run_id="r")
    before = len(heard), len(sink.events)
    assert flujo.replay("r").verdict == "same"
    assert (len(heard), len(sink.events)) == before


def test_an_interrupted_run_is_compared_as_far_as_it_is_recorded() -> None:
    """A run without an end has no difference behind its last record."""
    store = MemoryStore()

    async def stop(n: int) -> int:
        raise KeyboardInterrupt

    flow = Step("first", str) >> Step("second", untyped(stop))
    with pytest.raises(KeyboardInterrupt):
        Flujo(flow, store=store).run(1, run_id="r")
    assert ended(Flujo(flow, store=store).replay("r")) == ("same", None)


def test_the_original_store_is_only_read(tmp_path: Path) -> None:
    """R4: a read-only file can be replayed."""
    made, copied = tmp_path / "runs.db", tmp_path / "copy"
    flujo = Flujo(Step("first", str), store=f"sqlite:///{made}")
    flujo.run(1, run_id="r")
    RunClient(f"sqlite:///{made}").get("r")
    copied.mkdir()
    for file in tmp_path.glob("runs.db*"):
        shutil.copy(file, copied)
    store = SqliteStore(copied / "runs.db")
    records = store.get(untyped("r")).records
    for file in copied.iterdir():
        os.chmod(file, 0o444)
    assert Flujo(Step("first", str), store=store).replay("r").verdict == "same"
    assert store.get(untyped("r")).records == records


def test_an_unknown_run_is_not_found() -> None:
    """And without a store there is none."""
    flujo = Flujo(step(str), store=MemoryStore())
    with pytest.raises(RunNotFound):
        flujo.replay("gone")
    with pytest.raises(DeclarationError, match="Flujo has no store"):
        Flujo(step(str)).replay("gone")


@pytest.mark.parametrize("slow", ["left", "right"])
def test_the_first_of_two_concurrent_divergences_is_that_of_the_record(slow: str) -> None:
    """Whichever branch is faster now: each continues as recorded, and the earlier record decides."""
    store, settled = MemoryStore(), trio.Event()

    def branch(name: str, **changed: Any) -> Any:
        async def enter(data: int) -> int:
            if name == slow:
                await settled.wait()
            return data

        async def leave(data: int) -> int:
            return data

        async def end(data: int) -> int:
            settled.set()
            return data

        return Step(f"{name} in", enter) >> Step(f"{name} out", leave, **changed) >> Step(f"{name} end", end)

    def both(**changed: Any) -> Flujo[Any, Any]:
        branches = {name: branch(name, **changed) for name in ("left", "right")}
        return Flujo(Step.parallel("both", branches), store=store)

    both().run(1, run_id="r")
    replay = both(input=lambda data, context: data + 1).replay("r")
    fast = "right" if slow == "left" else "left"
    assert ended(replay)[0] == "diverged"
    assert replay.difference is not None
    assert replay.difference.path == f"both/{fast}/{fast} out"
