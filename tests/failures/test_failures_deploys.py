"""Handlers and compensations are part of what makes a pipeline the same pipeline."""

from __future__ import annotations

from typing import Any

import pytest
from sagas import Saga

from flujo_actors import FingerprintMismatch, Flujo, MemoryStore, Pipeline, Step, Undo


async def fine(data: Any) -> Any:
    return data


async def broken(data: Any) -> Any:
    raise ValueError("broke")


async def refund(undo: Undo) -> None: ...


async def other(undo: Undo) -> None: ...


ASK = Step.human_in_the_loop("ask", "Go on?")


def _waiting(pipeline: Any) -> tuple[MemoryStore, str]:
    store = MemoryStore()
    return store, str(Flujo(pipeline, store=store).run("x", run_id="r").state_token)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            Step("pay", fine, compensate=refund) >> ASK,
            Step("pay", fine, compensate=other) >> ASK,
            "the compensation of step 'pay' changed",
        ),
        (
            Step("pay", fine) >> ASK,
            Step("pay", fine, compensate=refund) >> ASK,
            "the compensation of step 'pay' was added",
        ),
        (Step("pay", fine, on_failure=fine) >> ASK, Step("pay", fine) >> ASK, "handler 1 of step 'pay' was removed"),
        (
            Pipeline([Step("pay", fine), ASK], on_failure=refund),
            Pipeline([Step("pay", fine), ASK], on_failure=other),
            "handler 1 of the pipeline changed",
        ),
    ],
)
def test_a_change_of_what_handles_or_undoes_is_named(before: Any, after: Any, sentence: str) -> None:
    """In the words of the declaration."""
    store, token = _waiting(before)
    with pytest.raises(FingerprintMismatch, match=sentence):
        Flujo(after, store=store).resume(token, "yes")


def test_a_compensation_may_be_added_to_a_waiting_run() -> None:
    """Under `mode="compat"`; it undoes what was done before it was there."""
    saga = Saga()
    store, token = _waiting(Step("pay", saga.call("pay")) >> ASK >> Step("ship", broken))
    later = Step("pay", saga.call("pay"), compensate=saga.undo("pay")) >> ASK >> Step("ship", broken)
    result = Flujo(later, store=store).resume(token, "yes", mode="compat")
    assert result.status == "failed"
    assert saga.log == ["pay", "undo pay"]
    assert (saga.told[0].input, saga.told[0].output) == ("x", "pay!")


def test_a_compensation_that_is_gone_undoes_nothing() -> None:
    """Whoever takes it away while a run waits has said so."""
    saga = Saga()
    store, token = _waiting(saga.step("pay") >> ASK >> Step("ship", broken))
    later = Step("pay", saga.call("pay")) >> ASK >> Step("ship", broken)
    result = Flujo(later, store=store).resume(token, "yes", mode="force")
    assert (result.status, result.undone, saga.log) == ("failed", (), ["pay"])


def test_a_retry_that_is_allowed_later_does_not_begin_what_was_given_up() -> None:
    """What was over when its handlers were told stays over."""
    saga = Saga()
    store = MemoryStore()

    def pipeline(retries: int) -> Any:
        ask = Step.human_in_the_loop("sure", "Tell them?")
        return Step("pay", saga.call("pay", raises="no funds"), max_retries=retries, on_failure=ask)

    token = Flujo(pipeline(0), store=store).run("x", run_id="r").state_token
    result = Flujo(pipeline(5), store=store).resume(str(token), "yes")
    assert (result.status, saga.log) == ("failed", ["pay"])
