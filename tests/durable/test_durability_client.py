"""Runs seen from outside: listed, read at any point of their log, answered, cancelled and forgotten."""

from __future__ import annotations

import itertools
import time
from typing import Any

import pytest
import trio
from tour import Tour

from flujo_actors import (
    Aborted,
    DeclarationError,
    Failure,
    Flujo,
    NotPaused,
    RunClient,
    RunNotFound,
    Step,
    StepResult,
    Success,
    to_json,
)
from flujo_actors.stores._memory_store import MemoryStore
from kit.durable_places import AN_HOUR_LATER, Place
from kit.effects import Effects
from kit.other_processes import KILLED, Points, in_another_process


def asking(name: str = "ask") -> Any:
    return Step("work", lambda data: data) >> Step.human_in_the_loop(name, f"{name}?")


def failing() -> Step:
    async def fail(data: Any) -> Any:
        raise ValueError("no")

    return Step("fail", fail)


def test_runs_are_listed_by_status_pipeline_and_time(place: Place) -> None:
    """Latest change first."""
    store = place.open()
    client = RunClient(store, allow_blocking=True)
    Flujo(failing(), store=store).run(0, run_id="failed")
    between = time.time()
    time.sleep(0.01)
    Flujo(asking(), store=store).run(0, run_id="paused")
    Flujo(Step("one", lambda data: data), store=store).run(0, run_id="completed")
    assert [run.run_id for run in client.list()] == ["completed", "paused", "failed"]
    assert [run.run_id for run in client.list("paused")] == ["paused"]
    assert [run.run_id for run in client.list(pipeline="work >> ask")] == ["paused"]
    assert [run.run_id for run in client.list(updated_after=between)] == ["completed", "paused"]
    assert [run.run_id for run in client.list(updated_before=between)] == ["failed"]
    assert [run.run_id for run in client.list(limit=1)] == ["completed"]
    assert [run.run_id for run in client.list(created_after=between)] == ["completed", "paused"]
    info = client.get("paused")
    assert (info.status, info.pipeline, info.message, info.abandoned) == ("paused", "work >> ask", "ask?", False)
    assert info.created_at <= info.updated_at


def test_a_status_that_there_is_not_is_refused() -> None:
    """An empty list would say that no run has it yet."""
    client = RunClient(MemoryStore(), allow_blocking=True)
    with pytest.raises(
        ValueError, match="no status 'done'; a run is running, paused, sleeping, completed, failed, aborted"
    ):
        client.list("done")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no status 'zz'"):
        client.forget(older_than_s=0, statuses=("completed", "zz"))  # type: ignore[arg-type]


def test_outcomes_are_known_by_path(place: Place) -> None:
    """Also those of steps inside others, and what went wrong, as text."""
    store = place.open()
    Flujo(Step.parallel("both", {"a": Step("x", lambda data: 1), "b": failing()}), store=store).run(0, run_id="run")
    outcomes = RunClient(store, allow_blocking=True).outcomes("run")
    assert isinstance(outcomes["both"], Failure)
    assert isinstance(outcomes["both/b"], Failure)
    assert outcomes["both/b"].error.type_name == "ValueError"
    assert "both/a" not in outcomes or isinstance(outcomes["both/a"], Success)
    with pytest.raises(RunNotFound):
        RunClient(store, allow_blocking=True).outcomes("nobody")


def test_a_run_that_nobody_works_on_can_be_cancelled_for_good(place: Place) -> None:
    """A paused one and an abandoned one; they end as aborted, and are neither resumed, recovered nor answered."""
    client = RunClient(place.open(AN_HOUR_LATER), allow_blocking=True)
    points = Points(name="here")
    dying = Flujo(Step("die", lambda data: points("here")), store=place.open())
    assert in_another_process(lambda: dying.run(0, run_id="abandoned")) == KILLED
    paused = Flujo(asking(), store=place.open()).run(0, run_id="paused")
    client.cancel("abandoned")
    client.cancel("paused", "not needed any more")
    assert client.get("paused").state_token is None
    assert client.state("paused").feedback == "not needed any more"
    assert {run.status for run in client.list()} == {"aborted"}
    with pytest.raises(NotPaused):
        Flujo(asking(), store=place.open()).resume("paused")
    with pytest.raises(NotPaused):
        client.answer(paused.state_token or "", "yes")
    assert dying.recover() == []


def test_a_run_that_has_ended_cannot_be_cancelled(place: Place) -> None:
    """What it came to stays what it came to."""
    store = place.open()
    Flujo(Step("one", lambda data: data), store=store).run(0, run_id="run")
    with pytest.raises(NotPaused, match="has ended as completed"):
        RunClient(store, allow_blocking=True).cancel("run")
    assert RunClient(store, allow_blocking=True).get("run").status == "completed"
    with pytest.raises(RunNotFound):
        RunClient(store, allow_blocking=True).cancel("nobody")


@pytest.mark.trio
async def test_a_run_under_way_cannot_be_deleted_from_outside() -> None:
    """It goes on."""
    store = MemoryStore()
    client = RunClient(store, allow_blocking=True)

    async def work(data: int) -> int:
        assert not client.delete("run")
        return data

    result = await Flujo(Step("work", work), store=store).run_async(1, run_id="run")
    assert result.output == 1
    assert client.delete("run")
    assert not client.delete("run")


def test_old_runs_are_forgotten_by_age_and_status(place: Place) -> None:
    """Only those that have ended, unless the caller says otherwise."""
    store = place.open()
    client = RunClient(store, allow_blocking=True)
    Flujo(failing(), store=store).run(0, run_id="failed")
    Flujo(asking(), store=store).run(0, run_id="paused")
    assert client.forget(older_than_s=3600) == 0
    time.sleep(0.01)
    assert client.forget(older_than_s=0.0) == 1
    assert [run.run_id for run in client.list()] == ["paused"]
    assert client.forget(older_than_s=0.0, statuses=("paused",)) == 1
    with pytest.raises(RunNotFound):
        client.get("paused")


@pytest.mark.slow
def test_the_state_at_every_record_is_what_was_known_then(effects: Effects) -> None:
    """Taken while the run goes on, after each of its writes, and from its log afterwards: the same."""
    store = _Watched(MemoryStore())
    Tour(effects).complete(store, "run")
    assert len(store.seen) > 15
    client = RunClient(store.inner, allow_blocking=True)
    for seq, (state, status) in store.seen.items():
        later = client.state_at("run", seq)
        assert _comparable(later) == _comparable(state), seq
        assert later.status == status, seq


def _comparable(state: Any) -> tuple[Any, ...]:
    outcomes = {path: to_json(outcome) for path, outcome in state.outcomes.items()}
    return (outcomes, state.open_steps, state.pauses, state.answers, state.usage, state.input, state.context)


class _Watched:
    """A store that keeps what a client sees after every write."""

    def __init__(self, inner: MemoryStore) -> None:
        self.inner = inner
        self.seen: dict[int, tuple[Any, str]] = {}

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.inner, name)

        def call(*arguments: Any, **options: Any) -> Any:
            answer = method(*arguments, **options)
            if name in ("admit_all", "append", "answer"):
                client = RunClient(self.inner, allow_blocking=True)
                state = client.state("run")
                self.seen[state.seq] = state, client.get("run").status
            return answer

        return call


def test_the_state_grows_record_by_record(effects: Effects) -> None:
    """Nothing that was known is forgotten, usage never falls, and the last state is the run's result."""
    store = MemoryStore()
    result = Tour(effects).complete(store, "run")
    client = RunClient(store, allow_blocking=True)
    states = [client.state_at("run", seq) for seq in range(1, len(store.read("run")) + 1)]
    assert [state.seq for state in states] == list(range(1, len(states) + 1))
    for earlier, later in itertools.pairwise(states):
        assert list(later.outcomes)[: len(earlier.outcomes)] == list(earlier.outcomes)
        assert later.usage.tokens >= earlier.usage.tokens
    last = states[-1]
    assert (last.status, last.output, last.usage.tokens) == ("completed", result.output, result.total_tokens)
    assert last.context == result.final_context
    assert last.open_steps == ()
    assert states[0].input == 1
    assert "paused" in {state.status for state in states}


def test_usage_is_known_in_the_middle_of_a_step_that_is_tried_again() -> None:
    """What failed attempts and nested steps have used is counted once, whatever is open."""
    store, seen = MemoryStore(), []

    async def flaky(data: int) -> Any:
        seen.append(RunClient(store, allow_blocking=True).state("run").usage.tokens)
        result = StepResult(name="", success=len(seen) == 3, output=data, token_counts=5)
        return Success(step_result=result) if len(seen) == 3 else Failure(feedback="no", step_result=result)

    inner = Step("flaky", flaky) >> Step("same", lambda data: data)
    pipeline = Step.parallel("around", {"only": inner}, max_retries=2)
    result = Flujo(pipeline, store=store).run(1, run_id="run")
    assert (result.status, result.total_tokens) == ("completed", 15)
    assert seen == [0, 5, 10]
    assert RunClient(store, allow_blocking=True).state("run").usage.tokens == 15


def test_a_list_in_created_order_does_not_move_with_changes(place: Place) -> None:
    """Newest run first, also by state; a cursor of one order is refused by the other."""
    store = place.open()
    client = RunClient(store, allow_blocking=True)
    flujo = Flujo(asking(), store=store)
    for run_id in ("a", "b", "c"):
        flujo.run(0, run_id=run_id)
    client.answer(client.get("a").state_token, "yes")
    assert flujo.resume("a").status == "completed"
    assert [run.run_id for run in client.list()] == ["a", "c", "b"]
    assert [run.run_id for run in client.list(order="created")] == ["c", "b", "a"]
    assert [run.run_id for run in client.list(state=("waiting", "completed"), order="created")] == ["c", "b", "a"]
    [first] = client.list(order="created", limit=1)
    assert [run.run_id for run in client.list(order="created", cursor=first.cursor)] == ["b", "a"]
    with pytest.raises(DeclarationError, match="this cursor belongs to order='created'"):
        client.list(cursor=first.cursor)
    with pytest.raises(DeclarationError, match="this cursor belongs to order='updated'"):
        client.list(order="created", cursor=client.get("a").cursor)
    with pytest.raises(DeclarationError, match="order must be 'updated' or 'created', not 'id'"):
        client.list(order="id")  # type: ignore[arg-type]


def test_an_aborted_run_is_listed_as_such() -> None:
    """A step that aborts ends the run; its reason is kept."""
    store = MemoryStore()
    Flujo(Step("stop", lambda data: Aborted(reason="enough")), store=store).run(0, run_id="run")
    state = RunClient(store, allow_blocking=True).state("run")
    assert (state.status, state.feedback) == ("aborted", "enough")


def test_two_hundred_runs_share_their_commits() -> None:
    """Six hundred steps are written in far fewer transactions than there are records."""
    store = MemoryStore()
    counting = _Counting(store)
    pipeline = Step("one", _same) >> Step("two", _same) >> Step("three", _same)
    flujo = Flujo(pipeline, store=counting)

    async def all_of_them() -> None:
        async def run(number: int) -> None:
            await flujo.run_async(number, run_id=str(number))

        async with trio.open_nursery() as nursery:
            for number in range(200):
                nursery.start_soon(run, number)

    trio.run(all_of_them)
    records = sum(len(store.read(str(number))) for number in range(200))
    assert records == 200 * 5  # an admission, three steps, an end
    assert counting.commits * 10 < records
    assert {run.status for run in RunClient(store, allow_blocking=True).list()} == {"completed"}


async def _same(data: Any) -> Any:
    return data


class _Counting:
    """A store that counts its transactions, and takes as long for each as a disk does."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner, self.commits = inner, 0

    def __getattr__(self, name: str) -> Any:
        if name in ("admit_all", "append"):
            self.commits += 1
            time.sleep(0.002)
        return getattr(self._inner, name)
