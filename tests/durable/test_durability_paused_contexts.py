"""Contexts of unfinished runs: every committed step of the innermost sequence or loop turn is in them."""

from __future__ import annotations

import pytest

from flujo_actors import Context, Flujo, Pipeline, RunClient, Step
from flujo_actors.stores import MemoryStore
from flujo_actors.stores._store_port import Store


class Chat(Context):
    """A transcript."""

    said: list[str] = []


async def note(data: str, *, context: Chat) -> str:
    context.said.append(data)
    return data


ASK = Step.human_in_the_loop("ask", "And then?", input_schema=str)
TURN = Step("note", note) >> ASK
CHAT = Step("greet", note) >> Step.loop_until("chat", TURN, until=lambda said, _: said == "bye", max_loops=9)


def said(flujo: Flujo, token: str | None, answer: str) -> tuple[list[str], str | None]:
    assert token is not None
    result = flujo.resume(token, answer)
    return result.final_context.said, result.state_token


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["in memory", "durable"])
def test_a_paused_chat_has_its_transcript_so_far(store: Store | None) -> None:
    """Each turn's committed steps are in the result of the pause, not only after the loop."""
    flujo = Flujo(CHAT, store=store, context_model=Chat)
    first = flujo.run("hello")
    assert first.final_context.said == ["hello", "hello"]
    assert [each.name for each in first.step_history] == ["greet"]
    second, token = said(flujo, first.state_token, "tea")
    assert second == ["hello", "hello", "tea"]
    assert said(flujo, token, "bye") == (["hello", "hello", "tea"], None)


def test_a_stored_chat_has_its_transcript_so_far() -> None:
    """Another process reads the same context from the records, between and within turns."""
    flujo, client = Flujo(CHAT, store=(store := MemoryStore()), context_model=Chat), RunClient(store)
    first = flujo.run("hello", run_id="chat")
    assert client.state("chat").context.said == ["hello", "hello"]
    second = flujo.resume(str(first.state_token), "tea")
    assert client.wait("chat").final_context.said == second.final_context.said == ["hello", "hello", "tea"]
    assert [each.name for each in second.step_history] == ["greet"]
    flujo.resume(str(second.state_token), "bye")
    assert client.state("chat").context.said == ["hello", "hello", "tea"]


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["in memory", "durable"])
def test_a_paused_branch_keeps_its_context_to_itself(store: Store | None) -> None:
    """Branches have contexts of their own until all of them have ended."""
    both = Step.parallel("both", {"a": TURN, "b": Step("other", note)})
    result = Flujo(Pipeline([Step("greet", note), both]), store=store, context_model=Chat).run("hello", run_id="run")
    assert result.status == "paused"
    assert result.final_context.said == ["hello"]
    if store is not None:
        assert RunClient(store).state("run").context.said == ["hello"]
