"""What the workers of `test_remote_cases` play: an agent with tools, bookings in a transaction, and a traced step."""

from __future__ import annotations

import os
import signal
from typing import Any

import trio
from fleet_app import history, log

from flujo_actors import Flujo, Pipeline, Step, current_unit

SETTINGS: dict[str, Any] = {"durability": {"lease_s": 60}, "fleet": {"look_s": 0.3, "unclaimed_s": 2.0}}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def times(*words: str) -> int:
    """How often these words were logged, by any process."""
    return sum(tuple(each[1 : len(words) + 1]) == words for each in history())


# --- an agent that is killed inside its third tool ----------------------------------------------------------


async def work(name: str) -> str:
    log("tool", name, current_unit().idempotency_key)
    if "CASES_DIE" in os.environ and name == "third" and times("tool", "third") == 1:
        die()
    return f"{name} done"


async def plan(messages: list[Any], info: Any) -> Any:
    """Three tools, one after another; the ids of the calls are the model's own."""
    from pydantic_ai import ModelResponse, TextPart, ToolCallPart, ToolReturnPart

    done = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
    log("turn", len(done))
    if len(done) == 3:
        return ModelResponse(parts=[TextPart(", ".join(str(part.content) for part in done))])
    name = ("first", "second", "third")[len(done)]
    return ModelResponse(parts=[ToolCallPart("work", {"name": name}, tool_call_id=f"call-{len(done)}")])


def make_agent(url: str, **options: Any) -> Flujo[Any, Any, Any]:
    from pydantic_ai import Agent
    from pydantic_ai.models.function import FunctionModel

    agent = Agent(FunctionModel(plan), tools=[work])
    return Flujo(Step.granular("agent", agent, runs_on="cores"), store=url, settings=SETTINGS, **options)


# --- bookings -----------------------------------------------------------------------------------------------


def book(item: int, *, transaction: Any) -> int:
    log("book", item)
    transaction.execute("INSERT INTO orders VALUES (%s)", (item,))
    if "CASES_DIE" in os.environ and item in (2, 7) and times("book", str(item)) == 1:
        die()
    return item


def make_orders(url: str, **options: Any) -> Flujo[Any, Any, Any]:
    items = Step.map_over("orders", Step("book", book, runs_on="cores"))
    return Flujo(Pipeline([items], name="orders"), store=url, settings=SETTINGS, **options)


# --- a trip that is cancelled -------------------------------------------------------------------------------


def booked(name: str) -> Step[Any, Any]:
    """Books, and can be undone; the hotel takes for ever."""

    async def act(data: Any) -> Any:
        log("book", name)
        if name == "hotel":
            await trio.sleep_forever()
        return data

    async def undo(undo: Any) -> None:
        log("undo", name, undo.completed)

    return Step(name, act, compensate=undo)


def make_trip(url: str, **options: Any) -> Flujo[Any, Any, Any]:
    body = Pipeline([booked("train"), booked("hotel"), booked("never")])
    abroad = Step.loop_until("abroad", body, lambda output, context: True, runs_on="cores")
    return Flujo(Pipeline([booked("flight"), abroad], name="trip"), store=url, settings=SETTINGS, **options)


# --- a trace ------------------------------------------------------------------------------------------------


def traced(number: int) -> int:
    return number + 1


def make_traced(url: str, exporter: Any, **options: Any) -> Flujo[Any, Any, Any]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    from flujo_actors.telemetry.otel import OtelSink

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    inner = Pipeline([Step("inner", traced), Step("other", traced)])
    remote = Step.loop_until("remote", inner, lambda output, context: True, runs_on="cores")
    settings = {**SETTINGS, "telemetry": {"sinks": [OtelSink(provider)]}}
    return Flujo(Pipeline([Step("home", traced), remote], name="traced"), store=url, settings=settings, **options)


def told_exporter() -> Any:
    """An exporter in memory, whose spans are logged as they come."""
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    class Told(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            for span in spans:
                log("span", f"{span.context.trace_id:032x}", span.name.replace(" ", "_"))
            return super().export(spans)

    return Told()


match os.environ.get("CASES"):
    case "agent":
        agent = make_agent(os.environ["FLEET_STORE"], engine="postgres")
    case "orders":
        orders = make_orders(os.environ["FLEET_STORE"], engine="postgres")
    case "trip":
        trip = make_trip(os.environ["FLEET_STORE"], engine="postgres")
    case "trace":
        trace = make_traced(os.environ["FLEET_STORE"], told_exporter(), engine="postgres")
