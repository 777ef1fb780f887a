"""Runs of pipelines that tell: each function drives one, with the settings it is given."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import anyio
import trio
from opentelemetry.sdk.trace import TracerProvider
from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from flujo_actors import (
    AssembledContext,
    Backoff,
    Collection,
    ContextSources,
    Flujo,
    LoopGuard,
    MemoryStore,
    Pipeline,
    Recovered,
    RunClient,
    Step,
    UsageLimits,
    from_retrieval,
    make_agent_async,
)
from flujo_actors.telemetry.otel import OtelSink
from flujo_actors.testing import Billed, CallTool, ScriptedRetriever, scripted_model

PRICES = {"scripted": {"input_usd": 1_000.0, "output_usd": 2_000.0}}
AT_ONCE = Backoff.none()


class City(BaseModel):
    name: str


async def same(data: Any) -> Any:
    return data


async def broken(data: Any) -> Any:
    raise ValueError("no luck")


def search(q: str) -> list[str]:
    return [q]


def report(settings: dict[str, Any], *, question: Any = "the question", run_id: str | None = None) -> Flujo:
    """An agent step that succeeds at its second attempt, with two model calls and a tool call in it."""
    model = scripted_model(TimeoutError("too slow"), CallTool("search", {"q": "x"}), "the answer")
    agent = make_agent_async(model, "You write reports.", tools=[search])
    step = Step("write", agent, max_retries=1, backoff=AT_ONCE)
    flujo = Flujo(Pipeline([step], name="report"), settings={**settings, "usage": {"prices": PRICES}})
    flujo.run(question, run_id=run_id)
    return flujo


def asking(settings: dict[str, Any]) -> None:
    """A run that pauses, and goes on with an answer."""
    pipeline = Pipeline([Step.human_in_the_loop("ask", "Fine?")], name="asking")
    flujo = Flujo(pipeline, settings=settings, labels={"tenant": "7"})
    flujo.resume(str(flujo.run("draft").state_token), "yes")


def falling_back(settings: dict[str, Any]) -> None:
    """A step that fails twice, and its fallback."""
    step = Step("try", broken, max_retries=1, backoff=Backoff(first=0.001, jitter=0.0), fallback=Step("rescue", same))
    Flujo(step, settings=settings).run(1)


def failing(settings: dict[str, Any]) -> None:
    """A run that fails, and a tool that does."""
    Flujo(Step("fail", broken), settings=settings).run(1)
    agent = Agent(scripted_model(CallTool("fail", {})))
    agent.tool_plain(fail)
    Flujo(Step("ask", agent), settings=settings).run("?")


async def fail() -> str:
    raise ConnectionError("down")


def left_in_a_thread(settings: dict[str, Any]) -> None:
    """A step in a thread that takes too long."""
    release = threading.Event()
    try:
        Flujo(Step("slow", lambda data: release.wait(60), timeout_s=0.5), settings=settings).run(1)
    finally:
        release.set()


def left_beside_a_failure(settings: dict[str, Any]) -> None:
    """A step whose thread cannot be stopped: it is at work when the branch beside it fails."""
    begun, release = threading.Event(), threading.Event()

    def slow(data: Any) -> None:
        begun.set()
        release.wait(60)

    async def fails(data: Any) -> None:
        while not begun.is_set():
            await anyio.sleep(0.001)
        raise ConnectionError("down")

    branches = {"slow": Step("slow", slow), "fails": Step("fails", fails)}
    try:
        Flujo(Step.parallel("both", branches), settings=settings).run(1)
    finally:
        release.set()


def swallowing(settings: dict[str, Any]) -> None:
    """A step that goes on although it was cancelled."""

    async def deaf(data: Any) -> Any:
        with anyio.CancelScope(shield=True):
            await anyio.sleep(0.05)
        return data

    Flujo(Step("deaf", deaf, timeout_s=0.01), settings=settings).run(1)


def mending(settings: dict[str, Any]) -> None:
    """A structured step whose answer is mended, and one that goes through all stages and degrades."""
    processing = {"schema": City, "degrade": True}
    mended = make_agent_async(scripted_model("{'name': 'Lima',}"))
    Flujo(Step("city", mended, processing=processing), settings=settings).run("?")
    stubborn = make_agent_async(scripted_model("I would rather not.", forever=True))
    Flujo(Step("city", stubborn, processing=processing), settings=settings).run("?")
    for reply in ("{'name': 'Lima',}", "I would rather not."):
        refused = make_agent_async(scripted_model(reply, forever=True), output_type=City)
        Flujo(Step("city", refused), settings=settings).run("?")
    repaired = make_agent_async(scripted_model("no", '{"name": "Lima"}'), output_type=City, retries=0)
    Flujo(Step("city", repaired), settings=settings).run("?")


def counting(settings: dict[str, Any]) -> None:
    """Models that count no tokens, that were asked from a cache, and that say why they ended."""
    stopping = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart("done")], finish_reason="stop"))
    cached = Billed("dear", input_tokens=9, output_tokens=1, cached_tokens=4)
    for model in (scripted_model(Billed("free")), scripted_model(cached), stopping):
        agent = make_agent_async(model, name="clerk", model_settings={"temperature": 0.3, "stop_sequences": ["END"]})
        Flujo(Step("ask", agent), settings=settings).run("?")


def with_a_broken_hook(settings: dict[str, Any]) -> None:
    """A hook that raises at a step."""

    def hook(payload: Any) -> None:
        if payload.kind == "pre_step":
            raise ValueError("no")

    Flujo(Step("a", same), hooks=hook, settings=settings).run(1)


def spending(settings: dict[str, Any]) -> None:
    """A step that uses up most of a budget of its own."""
    limits = UsageLimits(total_tokens_limit=1000)
    model = scripted_model(Billed("dear", input_tokens=800))
    Flujo(Step("ask", make_agent_async(model), usage_limits=limits), settings=settings).run("?")


def undoing(settings: dict[str, Any]) -> None:
    """A run that tells two handlers of its failure, undoes two steps, one in vain, and recovers."""
    inner = Pipeline(
        [Step("a", same, compensate=same), Step("b", same, compensate=broken), Step("c", broken)], name="in"
    )
    outer = Pipeline([inner], on_failure=lambda failure: Recovered("sorry"))
    told = Step.parallel("all", {"one": outer}, max_retries=1)
    Flujo(told, settings=settings).run(1)
    Flujo(Step("d", broken, on_failure=[broken, same]), settings=settings).run(1)


class Pages(Collection):
    """What the agent below searches."""


def knowing(settings: dict[str, Any]) -> None:
    """Steps that search: one finds, one finds the same again, one is skipped, one fails; one is recalled."""

    async def shown(data: Any, *, assembled: AssembledContext) -> str:
        if data == "again" and not gone:
            gone.append(1)
            raise KeyboardInterrupt
        return assembled.to_prompt_string()

    gone: list[int] = []
    passages = ScriptedRetriever(("a long passage " * 20, 0.9), ("a short one", 0.5))
    found = ContextSources([from_retrieval(Pages, query="q")], max_tokens=76)
    twice = Step("find", shown, context_sources=found) >> Step("find again", shown, context_sources=found)
    Flujo(twice, retrievers={Pages: passages}, settings=settings).run("x")
    skipped = Step("skip", shown, context_sources=[from_retrieval(Pages, on_error="skip")], max_retries=1)
    Flujo(skipped, retrievers={Pages: ScriptedRetriever(OSError("down"))}, settings=settings).run("x")
    store = MemoryStore()
    flujo = Flujo(
        Step("go on", shown, context_sources=found), retrievers={Pages: passages}, settings=settings, store=store
    )
    with contextlib.suppress(KeyboardInterrupt):
        flujo.run("again", run_id="again")
    flujo.resume("again")


def retrying(settings: dict[str, Any]) -> None:
    """A run that fails, is retried, and is retried from the start."""
    store = MemoryStore()
    flujo = Flujo(Pipeline([Step("try", broken)], name="retrying"), settings=settings, store=store)
    flujo.run(1, run_id="r")
    for _ in range(2):
        RunClient(store).retry("r", from_start=True, mode="compat", reason="mended", by="ada")
        flujo.resume("r")


def selecting(settings: dict[str, Any]) -> None:
    """A selection that has learned something."""
    flujo = Flujo(Step.select_agent("choose", {"only": same}), settings=settings)
    flujo.run(1)
    flujo.run(1)


def doubting(settings: dict[str, Any]) -> None:
    """An answer that is not sure enough."""
    Flujo(Step("guess", same, min_confidence=0.9, confidence=lambda output: 0.5), settings=settings).run(1)


def going_in_circles(settings: dict[str, Any]) -> None:
    """An agent that does the same again and again."""
    agent = Agent(scripted_model(*[CallTool("greet", {})] * 4, "done"))

    @agent.tool_plain
    async def greet() -> str:
        return "hello"

    Flujo(Step.granular("greet", agent, guard=LoopGuard()), settings=settings).run("?")


def handed_in(settings: Any) -> None:
    """A run that a worker plays."""
    flujo = Flujo(Step("double", lambda number: 2 * number), store=MemoryStore(), settings=settings)
    flujo.submit_sync(1, labels={"tenant": "7"})

    async def play() -> None:
        async with flujo.worker(once=True) as worker:
            await worker.stopped()

    trio.run(play)


def retained(settings: Any) -> None:
    """A worker that deletes the run it has executed."""
    store, retention = MemoryStore(), {"completed": "0s", "every_s": 0.01}
    flujo = Flujo(Step("double", lambda number: 2 * number), store=store, settings={**settings, "retention": retention})
    flujo.submit_sync(1)

    async def play() -> None:
        async with flujo.worker():
            with trio.fail_after(120):
                while store.counts().by_status:
                    await trio.sleep(0.01)

    trio.run(play)


def retried(settings: Any) -> None:
    """A failed run that is retried."""
    flujo = Flujo(Step("fail", broken), store=MemoryStore(), settings=settings, labels={"tenant": "7"})
    flujo.run(1, run_id="again")
    flujo.retry("again", reason="the cause is gone")


def sleeping(settings: Any) -> None:
    """A run that is put away, and resumed late."""
    now = [1000.0]
    told = settings["telemetry"]
    spans = {**settings, "telemetry": {**told, "sinks": [*told["sinks"], OtelSink(TracerProvider())]}}
    flujo = Flujo(Step.sleep("nap", 60), store=MemoryStore(wall=lambda: now[0]), settings=spans)
    assert flujo.run(1).status == "sleeping"
    now[0] += 61
    assert [result.status for result in flujo.recover()] == ["completed"]


def receiving(settings: Any) -> None:
    """A run that refuses an event, and receives the next one."""
    store = MemoryStore()
    client = RunClient(store, allow_blocking=True)
    for data in ("nonsense", 7):
        client.send("paid", key="run", data=data)
    assert (
        Flujo(Step.wait_for("paid?", "paid", schema=int), store=store, settings=settings).run(1, run_id="run").success
    )


def sending(settings: Any) -> None:
    """An event for a run that waits."""
    store = MemoryStore()
    flujo = Flujo(Step.wait_for("paid?", "paid"), store=store, settings=settings)
    assert flujo.run(1, run_id="order").status == "sleeping"
    assert RunClient(store, settings=settings).send("paid", key="order").status == "delivered"


def compacting(settings: Any) -> None:
    """A loop that keeps its last turn only."""
    body = Step("double", lambda number: 2 * number)
    loop = Step.loop_until("grow", body, lambda data, context: data > 9, max_loops=9, keep_history=1)
    assert Flujo(loop, store=MemoryStore(), settings=settings).run(1).output == 16


def steering(settings: Any) -> None:
    """A granular step whose tool sends its agent two messages."""
    store = MemoryStore()

    def ask(q: str) -> str:
        client = RunClient(store)
        return " ".join(client.steer("trip", text).status for text in ("by train", q))

    agent = make_agent_async(scripted_model(CallTool("ask", {"q": "by bus"}), "done"), tools=[ask])
    assert Flujo(Step.granular("plan", agent), store=store, settings=settings).run("go", run_id="trip").success


ALL = [
    receiving,
    sending,
    steering,
    retained,
    compacting,
    handed_in,
    retried,
    sleeping,
    knowing,
    *(report, asking, falling_back, failing, left_in_a_thread, left_beside_a_failure, swallowing, mending, counting),
    with_a_broken_hook,
    spending,
    selecting,
    doubting,
    going_in_circles,
    undoing,
    retrying,
]
