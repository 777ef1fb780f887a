"""Which requests of a watched run are streams: those of steps whose chunks somebody sees, over a real socket."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from agent_hosts import two_hosts
from pydantic import BaseModel
from wired import agent_of
from wired import connected as connected

from flujo_actors import Flujo, Pipeline, RunClient, Step
from flujo_actors._core.outcomes import RunId
from flujo_actors._durable.live_text import live_key, live_texts
from flujo_actors.terminal import watch
from flujo_actors.testing import Recorder
from flujo_actors.testing.wire import Json, ProviderStub, Request, ServerError, Text, ToolCall

pytestmark = pytest.mark.slow

MODEL = "openai-chat:gpt-4o"


class Triage(BaseModel):
    risk: str


def look(order: str) -> str:
    return f"{order} is on its way"


def script(request: Request) -> Any:
    """Answers by who is asked: the system prompts tell."""
    if "Triage." in request.text:
        return Json({"risk": "low"})
    if "Fail." in request.text:
        return ServerError()
    if "Draft." in request.text and not any(message.role == "tool" for message in request.messages):
        return ToolCall("look", {"order": "A-1"})
    return Text("one two three")


def desk() -> Pipeline[Any, Any]:
    return Pipeline(
        [
            Step("triage", agent_of(MODEL, "Triage.", Triage)),
            Step.parallel(
                "enrich",
                {
                    "mood": Step("mood", agent_of(MODEL, "Mood.")),
                    "topics": Step.map_over("topics", Step("topic", agent_of(MODEL, "Topic.")), items=["a", "b"]),
                },
            ),
            Step("draft", agent_of(MODEL, "Draft.", tools=[look])),
        ]
    )


def asked_to_stream(stub: ProviderStub) -> dict[str, set[bool]]:
    """Whether the requests of each agent were streams."""
    found: dict[str, set[bool]] = {}
    for request in stub.requests:
        who = next(word for word in ("Triage", "Mood", "Topic", "Draft", "Fail", "Spare") if f"{word}." in request.text)
        found.setdefault(who, set()).add(request.stream)
    return found


@two_hosts
@pytest.mark.parametrize(
    ("chunks", "streams"),
    [
        (True, {"Triage", "Mood", "Topic", "Draft"}),
        (False, set()),
        ("last", {"Draft"}),
        (["draft"], {"Draft"}),
        (["topic", "enrich/mood"], {"Mood", "Topic"}),
        (["enrich"], {"Mood", "Topic"}),
        (["triage"], {"Triage"}),
    ],
    ids=["all", "none", "last", "draft", "name and path", "composite", "structured"],
)
def test_only_agents_that_somebody_sees_are_asked_for_streams(connected, host, chunks, streams):
    """In every turn of theirs; what they come to is the same."""
    with ProviderStub(script) as stub:
        connected(stub)
        flujo, recorder = Flujo(desk()), Recorder()
        host.drive(lambda: recorder.record(flujo.run_async("help", chunks=chunks)))
        result = recorder.result
    assert result is not None
    assert result.output == "one two three"
    assert result.step_history[0].output == Triage(risk="low")
    assert asked_to_stream(stub) == {who: {who in streams} for who in ("Triage", "Mood", "Topic", "Draft")}
    seen = {word.capitalize() for word in ("triage", "mood", "topic", "draft") if recorder.chunks(word)}
    assert seen == streams
    assert "".join(recorder.chunks("draft")) == ("one two three" if "Draft" in streams else "")


@two_hosts
@pytest.mark.parametrize("chunks", [["draft"], False], ids=["seen", "unseen"])
def test_what_stands_in_and_what_is_kept_stream_like_the_step_itself(connected, host, chunks):
    """A fallback after a failure, and an agent whose turns are units of their own."""
    fails = agent_of(MODEL, "Fail.")
    spare = Step.granular("spare", agent_of(MODEL, "Spare."))
    with ProviderStub(script) as stub:
        connected(stub)
        flujo, recorder = (
            Flujo(Step("plan", agent_of(MODEL, "Mood.")) >> Step("draft", fails, fallback=spare)),
            Recorder(),
        )
        host.drive(lambda: recorder.record(flujo.run_async("help", chunks=chunks)))
    assert recorder.result is not None
    assert recorder.result.output == "one two three"
    streamed = asked_to_stream(stub)
    assert streamed == {"Mood": {False}, "Fail": {bool(chunks)}, "Spare": {bool(chunks)}}


@two_hosts
@pytest.mark.parametrize("progress", ["plain", "quiet", "json"])
def test_a_display_without_text_lets_nobody_stream(connected, host, progress, tmp_path):
    """Lines that stay show no words, so no words are asked for; JSON lines show them where that is wanted."""
    for chunks in (False, True):
        with ProviderStub(script) as stub, open(tmp_path / "shown", "w", encoding="utf-8") as file:
            connected(stub)
            run = Flujo(Step("mood", agent_of(MODEL, "Mood."))).run_async("x")
            host.drive(
                lambda run=run, file=file, chunks=chunks: watch(run, progress=progress, file=file, chunks=chunks)
            )
        assert asked_to_stream(stub) == {"Mood": {progress == "json" and chunks}}


@two_hosts
def test_whoever_looks_at_the_run_from_outside_sees_text_that_its_reader_does_not_want(connected, host, tmp_path):
    """They are somebody, too: the agent streams, and the reader is spared the chunks."""
    store = f"sqlite:///{tmp_path}/runs.db"
    recorder, texts = Recorder(), list[str]()

    async def look() -> None:
        watched = RunClient(store).watch("r", texts=True)
        while await watched.next_batch() is not None:
            texts.extend(watched.new_texts().values())

    async def main() -> None:
        async def until_watched(data: str) -> str:
            group.start_soon(look)
            while not live_texts.is_watched(live_key(flujo._store, RunId("r"))):
                await anyio.sleep(0.01)
            return data

        flujo = Flujo(Step("wait", until_watched) >> Step("mood", agent_of(MODEL, "Mood.")), store=store)
        async with anyio.create_task_group() as group:
            await recorder.record(flujo.run_async("x", run_id="r", chunks=False))

    with ProviderStub(script) as stub:
        connected(stub)
        host.drive(main)
    assert asked_to_stream(stub) == {"Mood": {True}}
    assert recorder.chunks() == []
    assert any("one" in text for text in texts)
