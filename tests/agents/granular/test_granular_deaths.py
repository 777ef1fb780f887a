"""A process that dies at any point of a granular run, and the one that goes on in its place."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import anyio
import attrs
import pytest
from mortal_journal import Died, Fate, MortalJournal, die
from payers import SCOPE, Bank, payer, request_of, streamed
from pydantic import BaseModel
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, ToolCallPart, ToolReturnPart

from flujo_actors._agents.granular.granular_request import GranularRequest
from flujo_actors._agents.granular.units import UnitKey
from flujo_actors._core.usage import Usage
from flujo_actors.testing import JumpingLoop

pytestmark = pytest.mark.slow


class Receipt(BaseModel):
    """A structured answer."""

    paid: int


async def _run(request: GranularRequest) -> Any:
    return await request.run()


async def _stream(request: GranularRequest) -> Any:
    return (await streamed(request))[1]


async def _life(bank: Bank, journal: MortalJournal, way: Callable[..., Any], **config: Any) -> Any:
    """One process: a new agent, the world and the records as they are."""
    return await way(request_of(payer(bank, journal.fate, turns=2, **config), journal))


def _points(way: Callable[..., Any], **config: Any) -> int:
    journal = MortalJournal()
    asyncio.run(_life(Bank(), journal, way, **config))
    return len(journal.fate.passed)


def _told(messages: list[ModelMessage]) -> list[str]:
    """What was said, without the times at which it was."""
    return [f"{type(part).__name__} {getattr(part, 'content', '')}" for message in messages for part in message.parts]


def _require_pairs(messages: list[ModelMessage]) -> None:
    """Every tool call is answered in the next message, as providers demand."""
    for call, answer in itertools.pairwise(messages):
        if isinstance(call, ModelResponse) and isinstance(answer, ModelRequest):
            asked = [part.tool_call_id for part in call.parts if isinstance(part, ToolCallPart)]
            assert asked == [part.tool_call_id for part in answer.parts if isinstance(part, ToolReturnPart)]


WAYS = [
    pytest.param(_run, {}, 1, id="run"),
    pytest.param(_stream, {}, 1, id="stream"),
    pytest.param(_run, {"output_type": Receipt}, 4, id="structured"),
]


@pytest.mark.parametrize(("way", "config", "stride"), WAYS)
def test_a_run_killed_at_any_point_goes_on_without_repeating_what_was_committed(
    way: Callable[..., Any], config: dict[str, Any], stride: int
) -> None:
    """At every point the second process ends as an uninterrupted one, with each payment made at most twice.

    Where only the kind of the answer differs, some points do.
    """
    whole = asyncio.run(_life(Bank(), MortalJournal(), way, **config))
    for point in range(0, _points(way, **config), stride):
        bank, journal = Bank(), MortalJournal(Fate(deadly=point))
        with pytest.raises(Died):
            asyncio.run(_life(bank, journal, way, **config))
        result = asyncio.run(_next_life(bank, journal, way, **config))
        assert result.output == whole.output
        assert result.usage.requests == 3
        assert _told(result.all_messages()) == _told(whole.all_messages())
        _require_pairs(result.all_messages())


async def _next_life(bank: Bank, journal: MortalJournal, way: Callable[..., Any], **config: Any) -> Any:
    """Go on after a death, and see that the world was not asked again for what was committed."""
    committed, paid_before = set(journal.results), bank.payments.copy()
    second = journal.in_another_process()
    result = await _life(bank, second, way, **config)
    repeated = {bank.keys[call] for call, times in bank.payments.items() if times > paid_before[call] > 0}
    assert not {f"{SCOPE}:{key}" for key in committed} & repeated, journal.fate.passed[-1]
    assert committed <= set(second.recalled)
    assert len(bank.payments) == 4
    assert max(bank.payments.values()) <= 2
    return result


@pytest.mark.parametrize("way", [_run, _stream])
def test_a_run_cancelled_at_any_point_keeps_every_finished_payment(way: Callable[..., Any]) -> None:
    """What had ended when the cancellation came is recorded, and the next run goes on from there."""
    for point in range(0, _points(way) - 1, 2):
        bank, journal = Bank(), MortalJournal(Fate(deadly=point))
        asyncio.run(_cancelled(bank, journal, way))
        ended = {f"{SCOPE}:{key}" for key in journal.results}
        begun_to_write = [passed for passed in journal.fate.passed if passed.startswith("before commit")]
        assert len(ended) == len(begun_to_write), journal.fate.passed[-1]
        result = asyncio.run(_life(bank, journal.in_another_process(), way))
        assert result.output == "all paid"
        assert max(bank.payments.values()) <= 2


async def _cancelled(bank: Bank, journal: MortalJournal, way: Callable[..., Any]) -> None:
    task = asyncio.create_task(_life(bank, journal, way))
    journal.fate.end = task.cancel
    with pytest.raises(asyncio.CancelledError):
        await task


class BoundedLoop(JumpingLoop):
    """Loop on the mock clock that refuses to schedule callbacks without end."""

    scheduled = 0

    def call_soon(self, *given: Any, **options: Any) -> asyncio.Handle:
        self.scheduled += 1
        if self.scheduled > MOST_CALLBACKS:
            self.stop()
        return super().call_soon(*given, **options)


MOST_CALLBACKS = 5_000


@attrs.define
class SlowJournal(MortalJournal):
    """Journal whose first commit takes an hour, and is cancelled meanwhile."""

    cancel: Callable[[], object] = die

    async def commit(self, key: UnitKey, result: str, usage: Usage) -> None:
        if not self.results:
            asyncio.get_running_loop().call_later(60, self.cancel)
            await asyncio.sleep(3600)
        await MortalJournal.commit(self, key, result, usage)


@pytest.mark.parametrize("way", [_run, _stream])
def test_a_cancelled_commit_waits_for_a_slow_store_without_spinning(way: Callable[..., Any]) -> None:
    """anyio repeats a cancellation in every round, so a commit that answers each one would never be idle."""
    journal = SlowJournal()

    async def cancelled() -> float:
        with anyio.CancelScope() as scope:
            journal.cancel = scope.cancel
            await _life(Bank(), journal, way)
        assert scope.cancelled_caught
        return asyncio.get_running_loop().time()

    with asyncio.Runner(loop_factory=BoundedLoop) as runner:
        assert runner.run(cancelled()) >= 3600
    assert len(journal.results) == 1


def test_a_process_may_die_again_and_again() -> None:
    """Each life commits a little more, and the last one ends the run."""
    bank, journal = Bank(), MortalJournal(Fate(deadly=7))
    lives = 0
    while True:
        lives += 1
        try:
            result = asyncio.run(_life(bank, journal, _run))
            break
        except Died:
            journal = journal.in_another_process()
            journal.fate = Fate(deadly=7 + 2 * lives)
    assert result.output == "all paid"
    assert lives > 3
    assert len(bank.payments) == 4


def test_a_finished_run_is_replayed_without_a_single_call() -> None:
    """Resuming what is complete calls neither the model nor a tool."""
    bank, journal = Bank(), MortalJournal()
    first = asyncio.run(_life(bank, journal, _run))
    requests, payments = bank.requests, bank.payments.total()
    second = asyncio.run(_life(bank, journal.in_another_process(), _run))
    assert second.output == first.output
    assert (bank.requests, bank.payments.total()) == (requests, payments)


def test_a_fate_that_is_not_death_ends_nothing() -> None:
    """The scaffold itself: without a deadly point every point is passed."""
    assert Fate(end=die).deadly is None
    assert _points(_run) > 40
