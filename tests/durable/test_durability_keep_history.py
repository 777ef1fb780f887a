"""Loops with `keep_history`: bounded records, memory and cost, resumable at every record."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import trio

from flujo_actors import (
    Context,
    DeclarationError,
    Flujo,
    LoopGuard,
    MemoryStore,
    Pipeline,
    RunClient,
    Step,
    StepResult,
    Success,
    UsageLimitExceededError,
    UsageLimits,
)
from flujo_actors.errors import Compacted
from flujo_actors.testing import MemorySink
from kit.durable_places import AN_HOUR_LATER, Place, SqlitePlace
from kit.effects import Effects
from kit.other_processes import KILLED, PointedStore, Points, ended, forked


class Heard(Context):
    """A context that grows by nothing: the last answers."""

    last: list[str] = []
    turns: int = 0


async def remember(answer: str, *, context: Heard) -> str:
    context.last = [*context.last, answer * 50][-3:]
    context.turns += 1
    return answer


def chat(keep: int | None = 5, *, until: str = "bye", **options: Any) -> Pipeline:
    """A conversation: each turn asks, and remembers the answer."""
    turn = Step.human_in_the_loop("ask", "next?") >> Step("remember", remember)
    options = {"max_loops": None, **options}
    return Pipeline((Step.loop_until("chat", turn, lambda said, _: said == until, keep_history=keep, **options),))


def counting(limit: int, keep: int | None = 3, **options: Any) -> Pipeline:
    """A loop that counts, at ten tokens a turn."""

    async def add(number: int) -> Success:
        return Success(step_result=StepResult(name="", output=number + 1, token_counts=10))

    options = {"max_loops": None, **options}
    loop = Step.loop_until("count", Step("add", add), lambda n, _: n >= limit, keep_history=keep, **options)
    return Pipeline((Step("first", lambda n: n), loop, Step("last", lambda n: n * 2)))


def talked(flujo: Flujo, answers: list[str], run_id: str = "chat-1") -> Any:
    result = flujo.run("hello", run_id=run_id)
    for answer in answers:
        result = flujo.resume(result.state_token, answer)
    return result


def test_a_loop_of_any_length_keeps_its_last_turns(place: Place) -> None:
    """Run id, totals and the number of loops are those of all turns; records and history of the last ones."""
    store = place.open()
    result = Flujo(counting(200), store=store).run(0, run_id="run")
    loop = result.step_history[1]
    assert (result.status, result.output, result.total_tokens) == ("completed", 400, 2_000)
    assert loop.metadata["loops"] == 200
    assert [turn.output for turn in loop.step_history] == [198, 199, 200]
    assert len(store.read("run")) < 20
    state = RunClient(store).state("run")
    assert (state.status, state.usage.tokens, state.results[1].metadata["loops"]) == ("completed", 2_000, 200)
    assert [turn.output for turn in state.results[1].step_history] == [198, 199, 200]


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["no store", "memory"])
def test_a_loop_in_memory_keeps_its_last_turns_too(store: Any) -> None:
    """The same loop, without a database."""
    result = Flujo(counting(50, guard=LoopGuard()), store=store).run(0)
    assert (result.output, len(result.step_history[1].step_history), result.total_tokens) == (100, 3, 500)


def test_a_chat_in_memory_continues_where_it_was() -> None:
    """Without a store, an answer continues the turn that asked."""
    flujo = Flujo(chat(2), context_model=Heard)
    result = talked(flujo, [*"abcdefgh", "bye"])
    assert (result.status, result.output, result.final_context.turns) == ("completed", "bye", 9)
    assert [turn.output for turn in result.step_history[0].step_history] == ["h", "bye"]


def test_a_chat_is_resumed_from_its_last_turns(place: Place) -> None:
    """Every answer is a new session: it reads the last turns, and the context is that of all."""
    store = place.open()
    flujo = Flujo(chat(2), store=store, context_model=Heard)
    result = talked(flujo, [*"abcdefghij", "bye"])
    assert (result.status, result.final_context.turns) == ("completed", 11)
    assert result.final_context.last == ["i" * 50, "j" * 50, "bye" * 50]
    assert result.step_history[0].metadata["loops"] == 11
    assert place.query("SELECT count(*) FROM flujo_pauses")[0][0] <= 4


def test_a_deleted_record_is_named_with_the_oldest_kept_one(place: Place) -> None:
    """`state_at`, `fork` and `record` refuse it; every kept record works, and a watch begins with the first."""
    store = place.open()
    flujo = Flujo(chat(2), store=store, context_model=Heard)
    result = talked(flujo, [*"abcdef"])
    client = RunClient(store)
    kept = [record.seq for record in client.records("chat-1")]
    oldest = store.compacted("chat-1")
    gone = next(seq for seq in range(2, kept[-1]) if seq not in kept)
    for refused in (client.state_at, client.record, client.fork):
        with pytest.raises(Compacted) as error:
            refused("chat-1", gone)
        assert str(error.value) == f"record {gone} of run 'chat-1' was compacted; the oldest kept is {oldest}"
        assert (error.value.seq, error.value.oldest) == (gone, oldest)
    assert client.records("chat-1", after=gone)[0].kind == "compacted"
    for seq in kept:
        assert client.record("chat-1", seq).seq == seq
        assert client.state_at("chat-1", seq).seq == seq
    assert client.state_at("chat-1", kept[-1]).context.turns == result.final_context.turns == 6


def test_a_watch_that_is_behind_gets_each_record_once(sqlite_place: SqlitePlace) -> None:
    """Records that were deleted before they were read are left out; no record is repeated."""
    store = sqlite_place.open()
    flujo = Flujo(counting(400, keep=2), store=store)

    async def watched() -> list[int]:
        seen: list[int] = []
        async with trio.open_nursery() as nursery:
            flujo_run = RunClient(store)
            await flujo.submit(0, run_id="run")
            nursery.start_soon(flujo.resume_async, "run")
            async for record in flujo_run.watch("run"):
                seen.append(record.seq)
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
        return seen

    seen = trio.run(watched)
    assert seen == sorted(set(seen))
    assert RunClient(store).get("run").records == seen[-1]


def test_a_fork_of_any_kept_record_continues_with_the_next_turn(place: Place) -> None:
    """The turns before it are not repeated."""
    store = place.open()
    flujo = Flujo(chat(2), store=store, context_model=Heard)
    talked(flujo, [*"abcdef"])
    client = RunClient(store)
    for record in client.records("chat-1"):
        turns = client.state_at("chat-1", record.seq).context
        result = flujo.resume(client.fork("chat-1", record.seq))
        assert result.status == "paused"
        before = getattr(turns, "turns", 0)
        assert result.final_context.turns in (before, before + 1)


def test_usage_of_deleted_turns_counts_for_limits(sqlite_place: SqlitePlace) -> None:
    """A resumed loop has used what all its turns used."""
    options = {"store": sqlite_place.open(), "usage_limits": UsageLimits(total_tokens_limit=95)}

    async def spend(answer: str) -> Success:
        return Success(step_result=StepResult(name="", output=answer, token_counts=10))

    turn = Step.human_in_the_loop("ask", "next?") >> Step("spend", spend)
    loop = Step.loop_until("chat", turn, lambda *_: False, max_loops=None, keep_history=2)
    flujo = Flujo(loop, **options)
    with pytest.raises(UsageLimitExceededError) as stopped:
        talked(flujo, list("abcdefghijklmn"))
    assert stopped.value.result.total_tokens == 90


def test_a_guard_remembers_deleted_turns(sqlite_place: SqlitePlace) -> None:
    """Equal turns are counted over sessions, although the records of most are gone."""
    guard = LoopGuard(same=4, then=("fail",))
    turn = Step.human_in_the_loop("ask", "next?")
    loop = Step.loop_until("chat", turn, lambda *_: False, max_loops=None, keep_history=1, guard=guard)
    flujo = Flujo(loop, store=sqlite_place.open())
    result = talked(flujo, list("abxxx"))
    assert result.status == "paused"
    result = flujo.resume(result.state_token, "x")
    assert (result.status, result.step_history[0].metadata.get("loops")) == ("failed", None)
    assert "a loop was found" in (result.feedback or "")


def test_a_change_of_the_number_takes_effect_with_the_next_turns(sqlite_place: SqlitePlace) -> None:
    """A deploy may add, raise or lower `keep_history` while runs wait."""
    store, counts = sqlite_place.open(), []
    result = Flujo(chat(None, max_loops=99), store=store, context_model=Heard).run("hello", run_id="chat-1")
    for keep, answer in zip((None, None, 6, 6, 6, 2, 2, 2, 4, 4, 4), "abcdefghijk", strict=True):
        options = {"max_loops": 99}
        flujo = Flujo(chat(keep, **options), store=store, context_model=Heard)
        result = flujo.resume(result.state_token, answer)
        counts.append(len(store.read("chat-1")))
    assert result.final_context.turns == 11
    assert counts[7] < counts[4]


def test_a_retried_run_keeps_its_compacted_turns(place: Place) -> None:
    """A failed turn is executed again, from the state of the last one that succeeded."""
    store, broken = place.open(), [True]

    async def add(number: int) -> int:
        if number == 7 and broken[0]:
            raise ValueError("broken")
        return number + 1

    loop = Step.loop_until("count", Step("add", add), lambda n, _: n >= 10, max_loops=None, keep_history=2)
    flujo = Flujo(loop, store=store)
    assert flujo.run(0, run_id="run").status == "failed"
    broken[0] = False
    result = flujo.retry("run")
    assert (result.status, result.output, result.step_history[0].metadata["loops"]) == ("completed", 10, 10)


def test_a_compaction_is_told_to_telemetry() -> None:
    """`loop.compacted` names the finished turns and the kept ones."""
    sink = MemorySink()
    Flujo(counting(5, keep=2), settings={"telemetry": {"sinks": [sink]}}).run(0)
    told = sink.of("loop.compacted")
    assert [(event.step_name, event.turn, event.kept) for event in told] == [
        ("count", 3, 2),
        ("count", 4, 2),
        ("count", 5, 2),
    ]


def body() -> Step:
    return Step("inside", lambda n: n)


def kept_loop(inside: Step) -> Step:
    return Step.loop_until("loop", inside, lambda *_: True, keep_history=2)


@pytest.mark.parametrize(
    ("declare", "text"),
    [
        (lambda: Step.loop_until("loop", body(), lambda *_: True, max_loops=None), "needs keep_history"),
        (lambda: Step.loop_until("loop", body(), lambda *_: True, keep_history=0), "keep_history must be at least 1"),
        (lambda: kept_loop(Step("pay", lambda n: n, compensate=lambda n: n)), "step 'pay' has a compensation"),
        (lambda: Step.map_over("map", kept_loop(body())), "cannot be inside a parallel, map or remote step"),
        (lambda: Step.parallel("all", {"a": kept_loop(body()) >> body()}), "loop 'loop' has keep_history"),
        (lambda: Step.sequence("there", kept_loop(body()), runs_on="gpu"), "cannot be inside a parallel, map"),
    ],
)
def test_a_loop_that_cannot_be_compacted_is_refused(declare: Any, text: str) -> None:
    """Compensations need old turns; parallel, mapped and remote loops share their run's records."""
    with pytest.raises(DeclarationError, match=text):
        declare()


class StoreOfOld:
    """A store from before loops could be compacted."""

    def __init__(self) -> None:
        self._store = MemoryStore()

    def __getattr__(self, name: str) -> Any:
        if name == "compacted":
            raise AttributeError(name)
        return getattr(self._store, name)


def test_a_store_without_compaction_is_named() -> None:
    """The error names the missing method; other pipelines run."""
    assert Flujo(body(), store=StoreOfOld()).run(1).output == 1
    with pytest.raises(DeclarationError, match="store StoreOfOld has no 'compacted': keep_history needs it"):
        Flujo(counting(3), store=StoreOfOld())


@pytest.mark.slow
def test_a_late_turn_costs_as_much_as_an_early_one(sqlite_place: SqlitePlace) -> None:
    """CPU of the last turns is about that of the first ones, and records do not grow."""
    store = sqlite_place.open()
    flujo = Flujo(chat(5), store=store, context_model=Heard)
    result, spent = flujo.run("hello", run_id="chat-1"), []
    for number in range(500):
        began = time.process_time()
        result = flujo.resume(result.state_token, f"{number:04}")
        spent.append(time.process_time() - began)
    assert result.final_context.turns == 500
    assert len(store.read("chat-1")) <= 200
    assert min(spent[-100:]) <= 4 * min(spent[15:60])


@pytest.mark.slow
def test_a_kill_at_any_point_repeats_no_committed_turn(place: Place, effects: Effects) -> None:
    """Before and after every store call and every effect of a loop: the same end, and nothing committed twice."""

    def loop(points: Points, run_id: str) -> Pipeline:
        async def work(number: int, *, context: Heard) -> int:
            effects.add(f"{run_id}:{number}")
            points("effect")
            context.turns += 1
            context.last = [*context.last, "x" * 600][-2:]
            return number + 1

        return Pipeline(
            (Step.loop_until("count", Step("work", work), lambda n, _: n == 6, max_loops=None, keep_history=2),)
        )

    def begin(number: int) -> int:
        points, run_id = Points(number), f"run {number}"
        store = PointedStore(place.open(), points)
        return forked(lambda: Flujo(loop(points, run_id), store=store, context_model=Heard).run(0, run_id=run_id))

    late = place.open(AN_HOUR_LATER)
    for number in itertools.count(1):
        assert number < 200
        code = ended(begin(number))
        if code == 0:
            break
        assert code == KILLED
        run_id = f"run {number}"
        if not RunClient(late).list(search=run_id) or RunClient(late).get(run_id).status == "completed":
            continue
        state = RunClient(late).state(run_id)
        done = [path for path in state.outcomes if path.startswith("count/~i")]
        before = effects.counted(f"{run_id}:")
        result = Flujo(loop(Points(), run_id), store=late, context_model=Heard).resume(run_id)
        after = effects.counted(f"{run_id}:")
        assert (result.output, result.final_context.turns) == (6, 6), number
        assert len(result.step_history[0].step_history) == 2
        settled = {str(int(path.rpartition("~i")[2]) - 1) for path in done}
        assert all(after[each] == before[each] for each in settled), number
        assert set(after) == set("012345"), number
    assert number > 20
