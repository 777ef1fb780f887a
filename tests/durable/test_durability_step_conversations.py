"""Steps that continue a stored conversation: loaded before an attempt, appended with its outcome."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import pytest
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, TextPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import (
    Backoff,
    Cache,
    DeclarationError,
    Flujo,
    MemoryStore,
    RunClient,
    Step,
    conversations,
    dump_blueprint,
    from_history,
    load_blueprint,
)
from flujo_actors._core.outcomes import RunId
from kit import preloaded

AT_ONCE = Backoff.none()


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Any:
    """A store of each kind."""
    return MemoryStore() if request.param == "memory" else request.getfixturevalue(f"{request.param}_place").open()


class Partner:
    """An agent that numbers its answers and keeps the texts of its requests."""

    def __init__(self, before: Any = None) -> None:
        self.requests: list[list[str]] = []
        self.before = before
        self.agent = Agent(FunctionModel(self._answer))

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.requests.append(texts_of(messages))
        if self.before is not None:
            self.before(len(self.requests))
        return ModelResponse([TextPart(f"answer {len(self.requests)}")])


def texts_of(messages: Any) -> list[str]:
    parts = [part for message in messages for part in message.parts]
    return [str(part.content) for part in parts if isinstance(part, UserPromptPart | TextPart)]


def stored(store: Any, name: str = "chat") -> list[str]:
    async def load() -> list[str]:
        found = await conversations(store).load(name)
        return [] if found is None else texts_of(found.messages)

    return anyio.run(load)


def add(store: Any, text: str, name: str = "chat") -> None:
    """Append a message as another program does."""

    async def save() -> None:
        there = conversations(store)
        talk = await there.load(name) or Conversation(conversation_id=name)
        talk.messages.append(ModelRequest(parts=[UserPromptPart(text)]))
        await there.save(talk)

    anyio.from_thread
    anyio.run(save)


def in_thread(call: Any, *args: object) -> None:
    """Call in a thread of its own: the callee starts a loop."""
    thread = threading.Thread(target=call, args=args)
    thread.start()
    thread.join()


@pytest.mark.parametrize("kind", [Step, Step.granular])
def test_each_run_continues_the_conversation(store: Any, kind: Any) -> None:
    """The history is sent before the prompt, and both new messages are appended once."""
    partner = Partner()
    flujo = Flujo(kind("s", partner.agent, conversation="chat"), store=store)
    assert [flujo.run(text).output for text in ("one", "two")] == ["answer 1", "answer 2"]
    assert partner.requests == [["one"], ["one", "answer 1", "two"]]
    assert stored(store) == ["one", "answer 1", "two", "answer 2"]


def test_a_function_names_the_conversation() -> None:
    """It gets data and context, as the functions of `input` do; another value fails the step."""
    store, partner = MemoryStore(), Partner()

    class Talk(BaseModel):
        user: str = ""

    flujo = Flujo(
        Step("s", partner.agent, conversation=lambda data, context: context.user or None),
        store=store,
        context_model=Talk,
    )
    for user in ("ann", "bob", "ann"):
        assert flujo.run("hello", context={"user": user}).success
    assert [len(request) for request in partner.requests] == [1, 1, 3]
    failed = flujo.run("hello")
    assert failed.feedback is not None
    assert "step 's': conversation must return an id, a text, not None" in failed.feedback
    assert stored(store, "bob") == ["hello", "answer 2"]


@pytest.mark.parametrize("kind", [Step, Step.granular])
def test_another_writer_makes_the_attempt_fail(store: Any, kind: Any) -> None:
    """The retry loads again: it sees the message of the other, and no message is lost or doubled."""

    def before(number: int) -> None:
        if number == 1:
            in_thread(add, store, "from elsewhere")

    partner = Partner(before)
    flujo = Flujo(kind("s", partner.agent, conversation="chat", max_retries=1, backoff=AT_ONCE), store=store)
    result = flujo.run("one")
    assert (result.output, result.step_history[0].attempts) == ("answer 2", 2)
    assert partner.requests == [["one"], ["from elsewhere", "one"]]
    assert stored(store) == ["from elsewhere", "one", "answer 2"]


def test_a_conflict_without_retries_fails_the_step(store: Any) -> None:
    """The message of the other writer stays, and nothing of the step is stored."""
    partner = Partner(lambda number: in_thread(add, store, "from elsewhere"))
    result = Flujo(Step("s", partner.agent, conversation="chat"), store=store).run("one", run_id="r")
    assert result.status == "failed"
    assert result.feedback is not None
    assert "Conversation 'chat' was saved or deleted since it was loaded" in result.feedback
    assert stored(store) == ["from elsewhere"]
    assert [each.kind for each in store.read(RunId("r"))].count("settled") == 1


def test_a_failed_step_and_a_fallback_leave_no_messages() -> None:
    """Only the messages of the output are part of the conversation."""
    store, partner = MemoryStore(), Partner()
    refuse = {"validators": [lambda answer: False]}
    assert not Flujo(Step("s", partner.agent, conversation="chat", **refuse), store=store).run("one").success
    fallback = Step("f", lambda data: "fallen back")
    assert (
        Flujo(Step("s", partner.agent, conversation="chat", fallback=fallback, **refuse), store=store).run("1").success
    )
    assert stored(store) == []


def test_two_steps_of_a_run_share_a_conversation() -> None:
    """The second sees the messages of the first; usage adds up."""
    store, partner = MemoryStore(), Partner()
    steps = Step("a", partner.agent, conversation="chat") >> Step("b", partner.agent, conversation="chat")
    assert Flujo(steps, store=store).run("one").success
    assert partner.requests[1] == ["one", "answer 1", "answer 1"]

    async def usage() -> int:
        [talk] = await conversations(store).list_conversations()
        return talk.usage.requests

    assert anyio.run(usage) == 2


def test_a_blueprint_names_the_conversation_by_a_template(tmp_path: Path) -> None:
    """It is written back as it was read."""
    file = tmp_path / "talk.yaml"
    file.write_text("""
version: "0.1"
agents:
  partner: {model: test, system_prompt: Answer.}
steps:
  - {name: s, uses: agents.partner, conversation: "chat {{ previous_step }}"}
""")
    pipeline = load_blueprint(file)
    store = MemoryStore()
    assert Flujo(pipeline, store=store).run("ann").success
    assert stored(store, "chat ann")[0] == "ann"
    assert "conversation: chat {{ previous_step }}" in dump_blueprint(pipeline)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"conversation": ""}, "step 's': conversation must be an id, or a function of data and context, not ''"),
        ({"conversation": 7}, "step 's': conversation must be an id, or a function of data and context, not 7"),
        (
            {"conversation": "c", "message_history": []},
            "step 's': conversation and message_history exclude each other: both are the history of its agent",
        ),
        (
            {"conversation": "c", "context_sources": [from_history("said")]},
            "step 's': conversation and from_history exclude each other: both are the history of its agent",
        ),
        (
            {"conversation": "c", "cache": Cache(60)},
            "step 's': conversation and cache exclude each other: a stored output has no messages",
        ),
    ],
)
def test_a_declaration_is_checked(options: dict[str, Any], text: str) -> None:
    """The message names the step and the option."""
    with pytest.raises(DeclarationError) as error:
        Step("s", Partner().agent, **options)
    assert str(error.value) == text


def test_a_conversation_needs_a_model_and_a_store() -> None:
    """A function has no messages, and without a store there is no place for them."""
    with pytest.raises(DeclarationError, match="so its agent must be a pydantic-ai agent"):
        Step("s", lambda data: data, conversation="c")
    with pytest.raises(DeclarationError, match=r"^step 's' has a conversation, and conversations need a store$"):
        Flujo(Step("s", Partner().agent, conversation="c"))


SCRIPT = """
import os, sys
from test_durability_step_conversations import Partner
from flujo_actors import Flujo, Step
from flujo_actors.stores import open_store
kind, when = sys.argv[2:]
store = open_store(sys.argv[1])
append = store.append
def dying(batch):
    ends = any(each.conversation is not None for each in batch)
    if ends and when == "before":
        os._exit(9)
    done = append(batch)
    return os._exit(9) if ends else done
store.append = dying
step = (Step.granular if kind == "granular" else Step)("s", Partner().agent, conversation=when)
Flujo(step, store=store).run("one", run_id=when)
"""


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    return f"sqlite:///{folder}/runs.db" if kind == "sqlite" else request.getfixturevalue("postgres_place").url


@pytest.mark.slow
@pytest.mark.parametrize(("database", "kind"), [("sqlite", "granular"), ("postgres", "atomic")])
def test_a_kill_at_the_commit_leaves_each_message_once(
    database: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Before and after the commit of the outcome; the next process completes the run."""
    url, environ = url_of(database, request, tmp_path), {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    for when in ("before", "after"):
        done = preloaded.run([sys.executable, "-c", SCRIPT, url, kind, when], env=environ)
        assert done.returncode == 9
        step = (Step.granular if kind == "granular" else Step)("s", Partner().agent, conversation=when)
        Flujo(step, store=url).recover()
        assert RunClient(url).get(when).status == "completed"
        assert [stored(url, when)[0], len(stored(url, when))] == ["one", 2]


WRITER = """
import sys
from test_durability_step_conversations import AT_ONCE, Partner
from flujo_actors import Flujo, Step
step = Step("s", Partner().agent, conversation="chat", max_retries=50, backoff=AT_ONCE)
flujo = Flujo(step, store=sys.argv[1])
for number in range(3):
    assert flujo.run(f"{sys.argv[2]} {number}").success
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_two_processes_append_to_one_conversation(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Each message is there once, and each answer follows its question."""
    url, environ = url_of(kind, request, tmp_path), {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    writers = [preloaded.Popen([sys.executable, "-c", WRITER, url, name], env=environ) for name in ("a", "b")]
    assert [writer.wait(240) for writer in writers] == [0, 0]
    said = stored(url)
    assert sorted(said[::2]) == sorted(f"{name} {number}" for name in "ab" for number in range(3))
    assert all(each.startswith("answer") for each in said[1::2])
