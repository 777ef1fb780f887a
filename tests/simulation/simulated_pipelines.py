"""Pipelines of every kind, written as factories for `simulate`, with their inputs, answers and checks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from pydantic_ai import Agent

from flujo_actors import Compensate, Flujo, Recovered, Step, StepFailure, Undo, UsageLimits, current_unit
from flujo_actors.testing import CallTool, World

ENDED = ("completed", "failed", "aborted")

Factory = Callable[[World], Flujo]


@attrs.frozen(kw_only=True)
class Case:
    """One pipeline, and the promise that holds in every history."""

    factory: Factory
    input: object
    output: object = None
    """Expected output of a completed run; None if it varies."""
    answers: Mapping[str, Any] = attrs.field(factory=dict)
    check: Callable[[World], object] | None = None
    rests: bool = False
    """Whether the run may rest instead of ending."""

    def promise(self, world: World) -> str | None:
        """Return the broken promise of a history, or None."""
        result = world.result
        assert result is not None
        if result.status not in ENDED and not self.rests:
            return f"the run is {result.status}"
        if result.status == "completed" and self.output is not None and result.output != self.output:
            return f"the output is {result.output!r}, not {self.output!r}"
        return None if self.check is None else self.check(world)  # type: ignore[return-value]


async def plus_one(data: int) -> int:
    return data + 1


def paying(world: World, name: str = "pay") -> Callable[..., Any]:
    """A step with an effect, which deduplicates by the idempotency key."""

    async def pay(data: Any, *, idempotency_key: str) -> Any:
        if all(effect.key != idempotency_key for effect in world.effects):
            world.effect(name, key=idempotency_key)
        return data

    return pay


def paid_once(world: World) -> str | None:
    twice = [key for key, count in Counter(effect.key for effect in world.effects).items() if count > 1]
    return f"{twice[0]!r} was paid twice" if twice else None


def chain(world: World) -> Flujo:
    tries = {"flaky": 0}

    async def flaky(data: int) -> int:
        tries["flaky"] += 1
        if world.rng.random() < 0.5 and tries["flaky"] < 3:
            raise ConnectionError("try again")
        return data * 2

    def sync(data: int) -> int:
        return data + 10

    steps = Step("a", plus_one) >> Step("b", flaky, max_retries=3) >> Step("pay", paying(world)) >> Step("d", sync)
    return Flujo(
        steps >> Step.branch_on("e", lambda data, context: data > 0, {True: plus_one, False: plus_one}),
        store=world.store,
    )


def mapped(world: World) -> Flujo:
    async def slow(data: int) -> int:
        await world.sleep(data % 3)
        return data * data

    return Flujo(Step.map_over("squares", Step("square", slow), max_concurrency=3), store=world.store)


def parallel(world: World) -> Flujo:
    branches = {name: Step("a", plus_one) >> Step("pay", paying(world, name)) for name in ("x", "y", "z")}
    return Flujo(Step.parallel("all", branches) >> Step("sum", lambda data: sum(data.values())), store=world.store)


def nested(world: World) -> Flujo:
    inner = Step.parallel("both", {"a": plus_one, "b": Step("pay", paying(world))})
    body = inner >> Step("sum", lambda data: data["a"] + data["b"])
    return Flujo(Step.map_over("items", body) >> Step("total", sum), store=world.store)


def loop(world: World) -> Flujo:
    body = Step("more", plus_one) >> Step("pay", paying(world))
    return Flujo(Step.loop_until("loop", body, lambda data, context: data >= 4, max_loops=8), store=world.store)


def compacted_loop(world: World) -> Flujo:
    body = Step("more", plus_one) >> Step("pay", paying(world))
    loop_step = Step.loop_until("loop", body, lambda data, context: data >= 8, max_loops=None, keep_history=2)
    return Flujo(loop_step, store=world.store)


def branches(world: World) -> Flujo:
    def kind(data: int, context: object) -> str:
        return "odd" if data % 2 else "even"

    choice = Step.branch_on("kind", kind, {"odd": Step("odd", paying(world)), "even": Step("even", plus_one)})
    return Flujo(Step("a", plus_one) >> choice >> Step("b", plus_one), store=world.store)


def fallback(world: World) -> Flujo:
    async def broken(data: int) -> int:
        world.effect("tried")
        raise RuntimeError("broken")

    return Flujo(
        Step("first", broken, max_retries=1, fallback=Step("second", paying(world))) >> Step("b", plus_one),
        store=world.store,
    )


def recovered(world: World) -> Flujo:
    async def broken(data: int) -> int:
        raise RuntimeError("broken")

    async def handler(failure: StepFailure) -> Recovered:
        world.effect("handled", key=failure.path)
        return Recovered(7)

    return Flujo(Step("a", broken, on_failure=handler) >> Step("b", plus_one), store=world.store)


def saga(world: World) -> Flujo:
    def booking(name: str) -> Step:
        async def book(data: str, *, idempotency_key: str) -> str:
            world.effect(f"book {name}", key=idempotency_key)
            return name

        async def undo(entry: Undo, *, idempotency_key: str) -> None:
            world.effect(f"undo {name}", key=idempotency_key)

        return Step(name, book, compensate=undo)

    async def fail(data: str) -> str:
        raise RuntimeError("no rooms")

    return Flujo(booking("flight") >> booking("car") >> Step("hotel", fail), store=world.store)


def saga_is_undone(world: World) -> str | None:
    """Everything that was booked is undone in a run that ended."""
    names = {effect.name for effect in world.effects}
    assert world.result is not None
    if world.result.status == "completed":
        return "a run without rooms completed"
    missing = [name for name in ("flight", "car") if f"book {name}" in names and f"undo {name}" not in names]
    return f"{missing[0]!r} was booked and not undone" if missing else None


def careful_saga(world: World) -> Flujo:
    async def book(data: str) -> str:
        await world.sleep(1)
        world.effect("book")
        return data

    async def undo(entry: Undo) -> None:
        await world.sleep(5)
        world.effect("undo")
        if world.rng.random() < 0.3:
            raise ConnectionError("try again")

    step = Step("a", book, compensate=Compensate(Step("undo", undo, max_retries=2), if_it_fails="continue"))
    slow = Step("wait", lambda data: data) >> Step("slow", plus_hour(world))
    return Flujo(step >> slow, store=world.store)


def plus_hour(world: World) -> Callable[..., Any]:
    async def wait(data: Any) -> Any:
        await world.sleep(60)
        return data

    return wait


def approval(world: World) -> Flujo:
    asked = Step.approval("sure", "Pay?", timeout_s=3600, on_timeout="reject", on_rejection=Step("no", lambda _: "no"))
    return Flujo(Step("a", plus_one) >> asked >> Step("pay", paying(world)), store=world.store)


def question(world: World) -> Flujo:
    asked = Step.human_in_the_loop("how", "How many?", input_schema=int)
    return Flujo(Step("a", plus_one) >> asked >> Step("pay", paying(world)), store=world.store)


def questions(world: World) -> Flujo:
    asked = {name: Step.human_in_the_loop(f"ask {name}", "How many?", input_schema=int) for name in ("x", "y")}
    return Flujo(Step.parallel("both", asked) >> Step("sum", lambda data: sum(data.values())), store=world.store)


def asleep(world: World) -> Flujo:
    return Flujo(Step("a", plus_one) >> Step.sleep("wait", 7200) >> Step("pay", paying(world)), store=world.store)


def timeouts(world: World) -> Flujo:
    async def late(data: int) -> int:
        await world.sleep(world.rng.choice((1, 30)))
        return data

    step = Step("late", late, timeout_s=10, max_retries=2, fallback=Step("other", plus_one))
    return Flujo(step >> Step("pay", paying(world)), store=world.store)


def selection(world: World) -> Flujo:
    async def good(data: int) -> int:
        return data

    async def poor(data: int) -> int:
        raise RuntimeError("poor")

    chosen = Step.select_agent(
        "pick", {"good": good, "poor": poor}, reward=lambda result, context: float(result.success)
    )
    return Flujo(Step("a", plus_one) >> chosen >> Step("pay", paying(world)), store=world.store)


def atomic_agent(world: World) -> Flujo:
    agent = Agent(world.model(CallTool("look", {"word": "tea"}), "tea is hot"), name="asker")

    @agent.tool_plain
    def look(word: str) -> str:
        world.effect("look")
        return f"{word}: hot"

    return Flujo(Step("ask", agent, max_retries=4) >> Step("pay", paying(world)), store=world.store)


def budget(world: World) -> Flujo:
    agent = Agent(world.model(lambda messages, rng: "word " * 5), name="asker")
    body = Step("ask", agent, max_retries=2)
    loop_step = Step.loop_until("loop", body, lambda data, context: False, max_loops=20)
    return Flujo(loop_step, store=world.store, usage_limits=UsageLimits(total_tokens_limit=100))


def granular(world: World, on_uncertain: Any = "rerun") -> Flujo:
    turns = [CallTool("book", {"city": "Oslo"}), CallTool("book", {"city": "Lima"})], CallTool("book", {"city": "Rome"})
    agent = Agent(world.model(*turns, "booked"), name="booker")

    @agent.tool_plain
    async def book(city: str) -> str:
        unit = current_unit()
        assert unit is not None
        await world.sleep(world.rng.random())
        world.effect("book", key=unit.idempotency_key)
        return f"booked {city}"

    step = Step.granular("travel", agent, on_uncertain=on_uncertain, max_retries=4)
    return Flujo(step >> Step("pay", paying(world)), store=world.store)


def granular_pause(world: World) -> Flujo:
    return granular(world, "pause")


def granular_fail(world: World) -> Flujo:
    return granular(world, "fail")


def booked_once(world: World) -> str | None:
    """A tool whose uncertain calls are not repeated has each effect at most once."""
    twice = [key for key, count in Counter(effect.key for effect in world.effects).items() if count > 1]
    return f"{twice[0]!r} was booked twice" if twice else None


def granular_approval(world: World) -> Flujo:
    agent = Agent(world.model(CallTool("send", {"to": "Ann"}), "sent"), name="sender")

    @agent.tool_plain(requires_approval=True)
    async def send(to: str) -> str:
        unit = current_unit()
        assert unit is not None
        world.effect("send", key=unit.idempotency_key)
        return f"sent to {to}"

    return Flujo(Step.granular("mail", agent, max_retries=4) >> Step("pay", paying(world)), store=world.store)


def granular_saga(world: World) -> Flujo:
    agent = Agent(world.model(CallTool("book", {"city": "Oslo"}), "booked"), name="booker")

    @agent.tool_plain
    async def book(city: str) -> str:
        world.effect("book")
        return city

    async def undo(entry: Undo) -> None:
        world.effect("undo")

    async def fail(data: str) -> str:
        raise RuntimeError("no money")

    step = Step.granular("travel", agent, compensate={"book": undo}, max_retries=4)
    return Flujo(step >> Step("pay", fail), store=world.store)


def fifo_yes(prompt: object, rng: object) -> bool:
    return True


CASES: dict[str, Case] = {
    "chain": Case(factory=chain, input=1, output=15, check=paid_once),
    "map": Case(factory=mapped, input=[1, 2, 3, 4, 5], output=[1, 4, 9, 16, 25]),
    "parallel": Case(factory=parallel, input=1, output=6, check=paid_once),
    "nested": Case(factory=nested, input=[1, 2, 3], output=15, check=paid_once),
    "loop": Case(factory=loop, input=0, output=4, check=paid_once),
    "compacted loop": Case(factory=compacted_loop, input=0, output=8, check=paid_once),
    "branches": Case(factory=branches, input=2, output=4, check=paid_once),
    "fallback": Case(factory=fallback, input=1, output=2),
    "recovered": Case(factory=recovered, input=1, output=8),
    "saga": Case(factory=saga, input="Lima", check=saga_is_undone),
    "careful saga": Case(factory=careful_saga, input="Lima", output="Lima"),
    "approval": Case(factory=approval, input=1, answers={"sure": "approve"}, check=paid_once),
    "approval without an answer": Case(factory=approval, input=1, output="no", check=paid_once),
    "question": Case(factory=question, input=1, output=3, answers={"how": 3}, check=paid_once),
    "questions": Case(factory=questions, input=1, output=7, answers={"both/x": 3, "both/y": 4, "ask x": 3, "ask y": 4}),
    "sleep": Case(factory=asleep, input=1, output=2, check=paid_once),
    "timeouts": Case(factory=timeouts, input=1, check=paid_once),
    "selection": Case(factory=selection, input=1, check=paid_once),
    "atomic agent": Case(factory=atomic_agent, input="tea?"),
    "budget": Case(factory=budget, input="go"),
    "granular": Case(factory=granular, input="go"),
    "granular, pause": Case(
        factory=granular_pause, input="go", answers={"travel": fifo_yes}, rests=True, check=booked_once
    ),
    "granular, fail": Case(factory=granular_fail, input="go", check=booked_once),
    "granular approval": Case(factory=granular_approval, input="go", answers={"mail": True}, rests=True),
    "granular saga": Case(factory=granular_saga, input="go"),
}
