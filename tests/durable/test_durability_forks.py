"""Forks: new runs that begin with what another had done."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from flujo_actors import AlreadyAnswered, Flujo, MemoryStore, RunClient, RunExists, RunNotFound, Step
from flujo_actors.errors import DeclarationError
from kit.durable_places import Place
from kit.effects import Effects


def pipeline(effects: Effects) -> Any:
    async def first(x: int) -> int:
        effects.add("first")
        return x + 1

    async def second(x: int) -> int:
        effects.add("second")
        return x * 10

    return Step("first", first) >> Step("second", second)


def test_a_fork_goes_on_from_a_record_and_repeats_nothing(place: Place, effects: Effects) -> None:
    """What was done before the point stays done; what came after it is done again, in a run of its own."""
    store = place.open()
    flujo = Flujo(pipeline(effects), store=store)
    assert flujo.run(1, run_id="origin").output == 20
    client = RunClient(store)
    [settled] = [row.seq for row in client.records("origin") if row.path == "first"]
    forked = client.fork("origin", settled)
    assert (client.get(forked).status, client.get(forked).abandoned) == ("running", True)
    assert flujo.resume(forked).output == 20
    assert effects.counted() == {"first": 1, "second": 2}
    assert client.get("origin").status == "completed"


def test_a_fork_names_its_origin(place: Place, effects: Effects) -> None:
    """In its state, in its first light record, and for good: a fork of a fork names the fork."""
    store = place.open()
    Flujo(pipeline(effects), store=store).run(1, run_id="origin")
    client = RunClient(store)
    client.fork("origin", 2, new_id="fork")
    client.fork("fork", 1, new_id="second")
    for run_id, origin in (("fork", ("origin", 2)), ("second", ("fork", 1))):
        state = client.state(run_id)
        assert state.origin is not None
        assert (state.origin.run_id, state.origin.seq) == origin
        first = client.records(run_id, limit=1)[0]
        assert (first.origin, first.origin_seq) == origin
    assert client.state("origin").origin is None


def test_a_fork_may_have_another_input(place: Place, effects: Effects) -> None:
    """From the first record on, it is the same run with other data."""
    store = place.open()
    flujo = Flujo(pipeline(effects), store=store)
    flujo.run(1, run_id="origin")
    forked = RunClient(store).fork("origin", 1, input=6)
    assert flujo.resume(forked).output == 70
    assert RunClient(store).state(forked).input == 6


def test_a_question_is_asked_again_in_a_fork(place: Place) -> None:
    """Under a token of the fork: both are answered, each by itself, and differently."""
    store = place.open()
    flujo = Flujo(Step.human_in_the_loop("ask", "Well?"), store=store)
    token = str(flujo.run(run_id="origin").state_token)
    client = RunClient(store)
    forked = client.fork("origin", client.get("origin").records, new_id="fork")
    asked = client.get(forked)
    assert (asked.status, asked.message) == ("paused", "Well?")
    assert asked.state_token is not None
    assert asked.state_token != token
    assert flujo.resume(asked.state_token, "yes").output == "yes"
    assert flujo.resume(token, "no").output == "no"
    with pytest.raises(AlreadyAnswered):
        client.answer(asked.state_token, "again")


def test_an_answered_question_is_not_asked_again(place: Place) -> None:
    """A fork after the answer has it; one before it waits."""
    store = place.open()
    flujo = Flujo(Step.human_in_the_loop("ask", "Well?") >> Step("shout", _shout), store=store)
    flujo.resume(str(flujo.run(run_id="origin").state_token), "yes")
    client = RunClient(store)
    [answered] = [row.seq for row in client.records("origin") if row.kind == "answered"]
    assert flujo.resume(client.fork("origin", answered)).output == "YES"
    assert client.get(client.fork("origin", answered - 1)).status == "paused"


async def _shout(text: str) -> str:
    return text.upper()


@pytest.mark.parametrize("seq", [0, -1, 99, "2", None])
def test_a_fork_at_no_record_is_refused(seq: object) -> None:
    """With the numbers that there are; nothing is written."""
    store = MemoryStore()
    Flujo(Step("shout", _shout), store=store).run("a", run_id="origin")
    with pytest.raises(DeclarationError, match="1 to 3"):
        RunClient(store).fork("origin", seq)  # type: ignore[arg-type]
    assert len(RunClient(store).list()) == 1


def test_a_fork_needs_a_run_and_a_free_id() -> None:
    """Both are named as everywhere."""
    store = MemoryStore()
    Flujo(Step("shout", _shout), store=store).run("a", run_id="origin")
    with pytest.raises(RunNotFound):
        RunClient(store).fork("nobody", 1)
    with pytest.raises(RunExists):
        RunClient(store).fork("origin", 1, new_id="origin")


def test_a_fork_is_recovered_like_any_run_that_was_left(place: Place, effects: Effects) -> None:
    """`recover()` finishes it."""
    store = place.open()
    flujo = Flujo(pipeline(effects), store=store)
    flujo.run(1, run_id="origin")
    forked = RunClient(store).fork("origin", 2)
    report = trio.run(flujo.recover_async)
    assert [result.run_id for result in report] == [forked]
