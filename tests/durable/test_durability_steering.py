"""Messages to the agent of a granular step while its run is open."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import (
    AmbiguousStep,
    DeclarationError,
    Flujo,
    MemoryStore,
    NotSteerable,
    RunClient,
    Step,
    TooLate,
)
from flujo_actors._api.cli.entry import main
from flujo_actors._core.outcomes import RunId
from flujo_actors._core.records.records import Record
from flujo_actors._core.telemetry_events import AgentSteered
from flujo_actors.telemetry import MemorySink
from kit import preloaded


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Any:
    """A store of each kind."""
    return MemoryStore() if request.param == "memory" else request.getfixturevalue(f"{request.param}_place").open()


class Traveler:
    """An agent that calls its tool once and then answers; it keeps its requests."""

    def __init__(self, tool: Callable[[], object]) -> None:
        self.requests: list[list[str]] = []
        self.agent = Agent(FunctionModel(self._answer))
        self.agent.tool_plain(name="book")(self._book(tool))

    def _book(self, tool: Callable[[], object]) -> Callable[[], Any]:
        async def book() -> str:
            return str(await tool())  # type: ignore[misc]

        return book if inspect.iscoroutinefunction(tool) else lambda: str(tool())

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        parts = [part for message in messages for part in message.parts]
        seen = [part for part in parts if isinstance(part, UserPromptPart | ToolReturnPart)]
        self.requests.append([str(part.content) for part in seen])
        if any(isinstance(part, ToolReturnPart) for part in parts):
            return ModelResponse([TextPart(f"done {len(self.requests)}")])
        return ModelResponse([ToolCallPart("book", {}, tool_call_id="c1")])


def test_messages_follow_the_tool_results_in_order(store: Any) -> None:
    """Each is part of the next request once; a second one with its id changes nothing."""
    client, sink, steered = RunClient(store), MemorySink(), []

    def tool() -> str:
        for text in ("by train", "not by bus", "by train"):
            steered.append(client.steer("trip", text, id=text))
        return "booked"

    agent = Traveler(tool)
    flujo = Flujo(Step.granular("s", agent.agent), store=store, settings={"telemetry": {"sinks": [sink]}})
    result = flujo.run("go", run_id="trip")
    assert agent.requests == [["go"], ["go", "booked", "by train", "not by bus"]]
    assert [each.status for each in steered] == ["queued", "queued", "duplicate"]
    assert steered[0].seq < steered[1].seq
    assert steered[2].seq == steered[0].seq
    assert "undelivered" not in result.step_history[0].metadata
    assert [event.messages for event in sink.events if isinstance(event, AgentSteered)] == [2]
    with pytest.raises(TooLate, match=r"^run 'trip' has ended \(completed\); the message was not stored$"):
        client.steer("trip", "too late")


def test_a_message_for_the_end_adds_one_turn() -> None:
    """The agent would end; it answers once more."""
    store = MemoryStore()
    agent = Traveler(lambda: RunClient(store).steer("trip", "and a hotel", when="when_done").status)
    result = Flujo(Step.granular("s", agent.agent), store=store).run("go", run_id="trip")
    assert agent.requests == [["go"], ["go", "queued"], ["go", "queued", "and a hotel"]]
    assert result.output == "done 3"


def test_a_message_after_the_last_request_is_named() -> None:
    """It stays undelivered, and the metadata of the step has its id."""
    store = MemoryStore()
    client = RunClient(store)

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        client.steer("trip", "by train", id="late")
        return ModelResponse([TextPart("done")])

    result = Flujo(Step.granular("s", Agent(FunctionModel(answer))), store=store).run("go", run_id="trip")
    assert result.step_history[0].metadata["undelivered"] == ["late"]


def test_a_message_while_the_step_settles_is_named(store: Any) -> None:
    """It is accepted after the last response; readers of the run find its id with the step."""
    client = RunClient(store, allow_blocking=True)

    def check(output: Any) -> bool:
        return client.steer("trip", "by train", id="late").status == "queued"

    step = Step.granular("s", Traveler(lambda: "booked").agent, validators=[check])
    assert Flujo(step >> Step("next", lambda data: data), store=store).run("go", run_id="trip").success
    assert client.state("trip").outcomes["s"].step_result.metadata["undelivered"] == ["late"]
    assert client.wait("trip").step_history[0].metadata["undelivered"] == ["late"]


def test_a_message_needs_one_open_granular_step() -> None:
    """An atomic step takes none, and of several one is named; one that has not begun keeps its message."""
    store, errors = MemoryStore(), []
    client = RunClient(store)

    def draft(data: str) -> str:
        while len(store.read(RunId("trip"))) < 2:  # until the record of its start is written
            threading.Event().wait(0.01)
        with pytest.raises(NotSteerable) as error:
            client.steer("trip", "shorter")
        errors.append(str(error.value))
        with pytest.raises(NotSteerable):
            client.steer("trip", "shorter", path="nowhere")
        client.steer("trip", "by train", path="s")
        return data

    agent = Traveler(lambda: "booked")
    Flujo(Step("draft", draft) >> Step.granular("s", agent.agent), store=store).run("go", run_id="trip")
    assert errors == ["run 'trip' has no open granular step; open: 'draft' (atomic)"]
    assert agent.requests[0] == ["go", "by train"]


def test_one_of_several_open_steps_is_named() -> None:
    """Without a path the message is refused; with it, that step alone gets it."""
    store, both, errors = MemoryStore(), threading.Barrier(2), []
    client = RunClient(store)

    def tool() -> str:
        both.wait(240)
        with pytest.raises(AmbiguousStep) as error:
            client.steer("trip", "by train")
        errors.append(str(error.value))
        client.steer("trip", "by train", path=str(error.value).split("'")[3], id="train")
        both.wait(240)
        return "booked"

    agents = {name: Traveler(tool) for name in ("a", "b")}
    steps = {name: Step.granular(name, each.agent) for name, each in agents.items()}
    Flujo(Step.parallel("p", steps), store=store).run("go", run_id="trip")
    assert errors[0].startswith("run 'trip' has 2 open granular steps ('p/")
    assert errors[0].endswith("'); give path=")
    assert sorted(len(each.requests[1]) for each in agents.values()) == [2, 3]


class CountingStore(MemoryStore):
    """A store that counts reads of records."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0

    def read(self, run_id: RunId, *, after: int = 0) -> list[Record]:
        self.reads += 1
        return super().read(run_id, after=after)


def test_a_run_without_messages_reads_nothing_more() -> None:
    """Its owner learns of messages with its own writes."""
    store = CountingStore()
    Flujo(Step.granular("s", Traveler(lambda: "booked").agent), store=store).run("go", run_id="trip")
    assert store.reads == 0


def test_one_of_many_senders_of_an_id_stores_its_message(store: Any) -> None:
    """The others get its number."""
    client = RunClient(store)

    def tool() -> str:
        with ThreadPoolExecutor(4) as pool:
            sent = list(pool.map(lambda _: client.steer("trip", "by train", id="train"), range(8)))
        assert sorted(each.status for each in sent) == ["duplicate"] * 7 + ["queued"]
        assert len({each.seq for each in sent}) == 1
        return "booked"

    agent = Traveler(tool)
    result = Flujo(Step.granular("s", agent.agent), store=store).run("go", run_id="trip")
    assert result.success
    assert agent.requests[1] == ["go", "booked", "by train"]


def test_a_new_conversation_repeats_the_messages_after_its_prompt() -> None:
    """A refused answer begins one; delivered messages are not lost."""
    store = MemoryStore()
    client = RunClient(store)
    sent = iter(["next_turn", "when_done"])

    def tool() -> str:
        when = next(sent, None)
        return "booked" if when is None else client.steer("trip", when, when=when).status  # type: ignore[arg-type]

    agent = Traveler(tool)
    answers: list[Any] = []

    def accepts(answer: str) -> bool:
        answers.append(answer)
        return len(answers) > 2

    step = Step.granular("s", agent.agent, max_retries=2, validators=[accepts])
    assert Flujo(step, store=store).run("go", run_id="trip").success
    firsts = [request[1:] for request in agent.requests if not any(each in request for each in ("queued", "booked"))]
    assert firsts == [[], ["next_turn"], ["next_turn", "when_done"]]


def test_a_fork_keeps_the_messages_up_to_its_record() -> None:
    """The forked run has them at the same place, and no later one."""
    store = MemoryStore()
    client = RunClient(store)

    to_send = ["not by bus", "by train"]

    def tool() -> str:
        while to_send:
            client.steer("trip", to_send.pop())
        return "booked"

    agent = Traveler(tool)
    flujo = Flujo(Step.granular("s", agent.agent), store=store)
    flujo.run("go", run_id="trip")
    second = [each.seq for each in store.read(RunId("trip")) if each.kind == "steered"][1]
    forked = client.fork("trip", second - 1)
    agent.requests.clear()
    assert flujo.resume(forked).success
    assert agent.requests == [["go", "booked", "by train"]]


def test_a_paused_run_gets_its_messages_when_it_resumes(store: Any) -> None:
    """No process is needed to accept them."""
    agent = Traveler(lambda: "booked")
    approved = Agent(FunctionModel(agent._answer))

    @approved.tool_plain(requires_approval=True)
    def book() -> str:
        return "booked"

    flujo = Flujo(Step.granular("s", approved), store=store)
    paused = flujo.run("go", run_id="trip")
    assert paused.status == "paused"
    assert RunClient(store).steer("trip", "by train").status == "queued"
    assert flujo.resume(str(paused.state_token), True).success
    assert agent.requests[-1] == ["go", "booked", "by train"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"message": ""},
        {"message": 7},
        {"message": b"raw"},
        {"message": "x", "when": "now"},
        {"message": "x", "id": ""},
    ],
)
def test_a_message_is_checked_before_it_is_stored(wrong: dict[str, Any]) -> None:
    """Text or contents, a known time and a text as id."""
    with pytest.raises(DeclarationError, match=r"^steer: "):
        RunClient(MemoryStore()).steer("trip", **wrong)


def test_a_store_without_messages_is_named() -> None:
    """Its runs execute as before; a message is refused with the missing method."""

    class Plain(MemoryStore):
        steer = property()

    store = Plain()
    assert Flujo(Step.granular("s", Traveler(lambda: "booked").agent), store=store).run("go", run_id="trip").success
    with pytest.raises(DeclarationError, match=r"^store Plain has no 'steer': steering an agent needs it$"):
        RunClient(store).steer("trip", "by train")


SCRIPT = """
import os, sys
from functools import partial
import anyio, trio
from test_durability_steering import Traveler
from flujo_actors import Flujo, RunClient, Step
client, steered = RunClient(sys.argv[1], allow_blocking=True), []
async def tool(run_id):
    for text in ("one", "two"):
        client.steer(run_id, text)
    steered.append(run_id)
    if len(steered) == 100:
        os._exit(9)
    await anyio.sleep_forever()
async def main():
    async with trio.open_nursery() as nursery:
        for number in range(100):
            flujo = Flujo(Step.granular("s", Traveler(partial(tool, f"run {number}")).agent), store=sys.argv[1])
            nursery.start_soon(partial(flujo.run_async, "go", run_id=f"run {number}"))
trio.run(main)
"""


@pytest.mark.slow
def test_messages_outlive_the_owner(place: Any) -> None:
    """The owner of 100 runs is killed between the messages and the next turn; each is delivered once, in order."""
    url = getattr(place, "url", None) or f"sqlite:///{place.path}"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert preloaded.run([sys.executable, "-c", SCRIPT, url], env=environ).returncode == 9
    agent = Traveler(lambda: "booked")
    flujo = Flujo(Step.granular("s", agent.agent), store=url)
    assert len(flujo.recover()) == 100
    assert agent.requests == [["go", "booked", "one", "two"]] * 100
    assert {info.status for info in RunClient(url).list()} == {"completed"}


def test_the_command_line_steers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`runs steer` stores a message as the client does, and prints its number."""
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    def tool() -> str:
        return str(main(["runs", "steer", "trip", "by train", "--store", url, "--json"]))

    agent = Traveler(tool)
    Flujo(Step.granular("s", agent.agent), store=url).run("go", run_id="trip")
    assert agent.requests[1] == ["go", "0", "by train"]
    assert '"status": "queued"' in capsys.readouterr().out
