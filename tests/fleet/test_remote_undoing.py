"""What remote steps did is undone as it would be at home, also where they were cut short."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import cases_app
import fleet_app
import pytest
import trio
from fleet_processes import Worker
from fleet_waiting import until
from test_remote_steps import fleet, make

from flujo_actors import AbortRun, Flujo, NotPaused, Pipeline, PostgresStore, RunClient, Step, Undo
from flujo_actors._core.records.records import Append
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow


@pytest.fixture
def url() -> str:
    return session_server().fresh_url()


@attrs.define
class Desk:
    """Steps that log what they do, and what is undone."""

    queue: str | None
    log: list[str] = attrs.field(factory=list)
    begun: trio.Event = attrs.field(factory=trio.Event)

    def undo(self, name: str) -> Callable[..., Any]:
        async def take_back(undo: Undo) -> None:
            assert (undo.step_name, undo.input) == (name, "x")
            self.log.append(f"undo {name}" + ("" if undo.completed else "?"))

        return take_back

    def step(self, name: str, work: Callable[..., Any] | None = None, **options: Any) -> Any:
        async def done(data: Any) -> Any:
            self.log.append(name)
            return data if work is None else await work(data)

        return Step(name, done, compensate=self.undo(name), **options)

    def waits(self, name: str, **options: Any) -> Any:
        async def wait(data: Any) -> Any:
            self.begun.set()
            await trio.sleep_forever()

        return self.step(name, wait, **options)

    def raises(self, name: str, error: BaseException, **options: Any) -> Any:
        """A step that waits until another one waits, and fails then."""

        async def fail(data: Any) -> Any:
            await self.begun.wait()
            raise error

        return self.step(name, fail, **options)

    def away(self, name: str, steps: list[Any], **options: Any) -> Any:
        """Steps that are performed by another worker together."""
        body = Pipeline(steps, name=f"{name} body")
        return Step.branch_on(name, lambda data, context: "only", {"only": body}, runs_on=self.queue, **options)


Shape = Callable[[Desk], Any]
SHAPES: dict[str, Shape] = {}


def shape(make_one: Shape) -> Shape:
    SHAPES[make_one.__name__.replace("_", " ")] = make_one
    return make_one


@shape
def a_call_in_flight_beside_a_failure(desk: Desk) -> Any:
    branches = {"b": desk.raises("b", ValueError("no")), "c": desk.waits("c", runs_on=desk.queue)}
    return Step.parallel("all", branches)


@shape
def steps_half_done_beside_a_failure(desk: Desk) -> Any:
    half = desk.away("half", [desk.step("x"), desk.waits("y"), desk.step("never")])
    return Step.parallel("all", {"b": desk.raises("b", ValueError("no")), "half": half})


@shape
def a_failure_that_is_retried(desk: Desk) -> Any:
    tries: list[str] = []

    async def once(data: Any) -> Any:
        tries.append(data)
        if len(tries) == 1:
            await desk.begun.wait()
            raise ValueError("no")
        return data

    async def wait_once(data: Any) -> Any:
        if not desk.begun.is_set():
            desk.begun.set()
            await trio.sleep_forever()
        return data

    half = desk.away("half", [desk.step("x"), desk.step("y", wait_once)])
    return Step.parallel("all", {"b": Step("b", once), "half": half}, max_retries=1)


@shape
def a_step_that_aborts_the_run(desk: Desk) -> Any:
    desk.begun.set()
    return desk.away("half", [desk.step("x"), desk.raises("y", AbortRun("enough"))])


@shape
def a_failure_inside(desk: Desk) -> Any:
    desk.begun.set()
    return desk.away("half", [desk.step("x"), desk.raises("y", ValueError("no"))])


@shape
def a_failure_inside_that_is_retried(desk: Desk) -> Any:
    desk.begun.set()

    async def fail_once(data: Any) -> Any:
        if desk.log.count("y") == 1:
            raise ValueError("no")
        return data

    half = desk.away("half", [desk.step("x"), desk.step("y", fail_once)], max_retries=1)
    return half >> desk.raises("z", ValueError("then"), input="x")


@shape
def nested_remote_steps(desk: Desk) -> Any:
    inner = desk.away("inner", [desk.step("x"), desk.waits("y")])
    outer = desk.away("outer", [desk.step("w"), inner])
    return Step.parallel("all", {"b": desk.raises("b", ValueError("no")), "outer": outer})


@shape
def items_of_a_batch(desk: Desk) -> Any:
    async def wait(data: Any) -> Any:
        if desk.log.count("then") == 4:
            desk.begun.set()
        await trio.sleep_forever()

    each = Pipeline([desk.step("item"), desk.step("then", wait)], name="each")
    items = Step.map_over("items", each, runs_on=desk.queue, batch=4)
    several = Step("several", _several) >> items
    return Step.parallel("all", {"b": desk.raises("b", ValueError("no")), "items": several})


async def _several(data: Any) -> Any:
    return [data] * 4


def undoing(desk: Desk) -> list[str]:
    """What was undone, in this order; which of two branches begins first is left to chance."""
    return [line for line in desk.log if line.startswith("undo")]


def played(flujo: Flujo[Any, Any, Any], desk: Desk) -> Any:
    async def main() -> Any:
        with trio.fail_after(120):
            if desk.queue is None:
                return await flujo.run_async("x")
            async with fleet(flujo):
                return await flujo.run_async("x")

    return trio.run(main)


@pytest.mark.parametrize("name", SHAPES)
def test_what_was_cut_short_elsewhere_is_undone(url: str, name: str) -> None:
    """In the order, and with the words, of the same pipeline at home."""
    at_home, away = Desk(None), Desk("gpu")
    home = played(Flujo(SHAPES[name](at_home), store=url), at_home)
    there = played(make(SHAPES[name](away), url), away)
    assert sorted(away.log) == sorted(at_home.log)
    assert undoing(away) == undoing(at_home)
    assert (there.status, there.feedback) == (home.status, home.feedback)
    assert [(each.path, each.success) for each in there.undone] == [(each.path, each.success) for each in home.undone]


@pytest.mark.parametrize("again", [False, True], ids=["while it is played", "after its workers went"])
def test_a_run_that_is_cancelled_undoes_what_remote_steps_had_done(url: str, again: bool) -> None:
    """Also inside those that were not finished; by whoever plays it, or the next worker."""
    desk = Desk("gpu")
    half = desk.away("half", [desk.step("x"), desk.waits("y"), desk.step("never")])
    flujo = make(Pipeline([desk.step("a"), half], name="cancelled"), url)
    client = RunClient(url, allow_blocking=True)

    async def over() -> None:
        while client.get("r").status in ("running", "paused"):
            await trio.sleep(0.02)

    async def main() -> None:
        await flujo.submit("x", run_id="r")
        with trio.fail_after(120):
            async with flujo.worker(queues=["default", "gpu"], grace_s=0):
                await desk.begun.wait()
                if not again:
                    client.cancel("r", "not wanted")
                    await over()
            if again:
                client.cancel("r", "not wanted")
                async with flujo.worker(queues=["default", "gpu"], grace_s=0):
                    await over()

    trio.run(main)
    assert (client.get("r").status, desk.log) == ("aborted", ["a", "x", "y", "undo y?", "undo x", "undo a"])


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("owner", ["child", "run"])
def test_a_run_that_is_cancelled_around_the_end_of_its_remote_step_is_undone(
    url: str, owner: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledged cancel counts, unless the run itself had ended before it."""
    desk, cancelled = Desk("gpu"), []
    flujo = make(Pipeline([desk.step("a"), desk.step("b", runs_on=desk.queue)], name="cancelled"), url)
    client, write = RunClient(url, allow_blocking=True), PostgresStore.append

    def append(self: PostgresStore, batch: Sequence[Append]) -> Any:
        ends = [each.lease.run_id for each in batch if each.status == "completed"]
        meets = not cancelled and any((run_id == "r") == (owner == "run") for run_id in ends)
        verdicts = None if meets and moment == "before" else write(self, batch)
        if meets:
            cancelled.append(ends)
            with contextlib.suppress(NotPaused):
                client.cancel("r", "not wanted")
        return write(self, batch) if verdicts is None else verdicts

    monkeypatch.setattr(PostgresStore, "append", append)

    async def main() -> Any:
        with trio.fail_after(120):
            async with fleet(flujo):
                return await flujo.run_async("x", run_id="r")

    result = trio.run(main)
    assert cancelled
    ended_before = (owner, moment) == ("run", "after")
    assert result.status == client.get("r").status == ("completed" if ended_before else "aborted")
    assert [line.removesuffix("?") for line in undoing(desk)] == ([] if ended_before else ["undo b", "undo a"])


def test_whoever_goes_on_with_a_run_knows_what_was_undone_elsewhere(url: str) -> None:
    """The branch has failed, and was undone by its worker; then the caller was interrupted."""
    desk, tried = Desk("gpu"), []
    desk.begun.set()

    async def interrupted(data: Any) -> Any:
        tried.append(data)
        if len(tried) == 1:
            raise KeyboardInterrupt
        return data

    half = desk.away("half", [desk.step("x"), desk.raises("y", ValueError("no"))])
    both = Step.parallel("both", {"half": half, "other": desk.step("other")}, on_branch_failure="ignore")
    flujo = make(Pipeline([both, Step("last", interrupted)], name="interrupted"), url)

    async def main() -> Any:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await flujo.run_async("x", run_id="r")

    with pytest.raises(KeyboardInterrupt):
        trio.run(main)
    result = flujo.resume("r")
    assert (result.status, result.output) == ("completed", {"other": "x"})
    assert [(each.step_name, each.success) for each in result.undone] == [("y", True), ("x", True)]
    assert undoing(desk) == ["undo y?", "undo x"]


def test_what_a_worker_did_that_was_killed_is_undone(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a remote step that it had not finished, by the next worker, once the run is cancelled."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setattr(fleet_app, "LOG", str(log))
    client, flujo = RunClient(url, allow_blocking=True), cases_app.make_trip(url, engine="postgres")
    options: Any = (url, log, "--queue", "default", "--queue", "cores")

    def said(word: str) -> list[str]:
        return [" ".join(words[2:]) for words in fleet_app.history() if words[1] == word]

    with Worker(*options, target="cases_app:trip", CASES="trip").ready() as killed:
        flujo.submit_sync("x", run_id="r")
        until(lambda: "hotel" in said("book"), 120)
        killed.process.kill()
        killed.process.wait()
    client.cancel("r", "not wanted")
    with Worker(*options, target="cases_app:trip", CASES="trip").ready():
        until(lambda: client.get("r").status == "aborted", 120)
    assert said("undo") == ["hotel False", "train True", "flight True"]


def test_the_tool_calls_of_a_remote_agent_are_undone(url: str) -> None:
    """One by one, the last first, with what each was told and came to; as at home."""
    at_home: list[object] = []
    away: list[object] = []
    Flujo(booking(at_home, None), store=url).run("x", run_id="home")
    played(make(booking(away, "gpu"), url), Desk("gpu"))
    assert away == at_home
    assert away[-2:] == [("cancel", {"name": "Lima"}, "Lima booked"), ("cancel", {"name": "Oslo"}, "Oslo booked")]


def booking(log: list[object], queue: str | None) -> Any:
    """An agent that books two flights, and a step that fails after it."""
    from pydantic_ai import Agent, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
    from pydantic_ai.models.function import FunctionModel

    async def book(name: str) -> str:
        log.append(("book", name))
        return f"{name} booked"

    async def plan(messages: list[Any], info: Any) -> Any:
        done = [part for message in messages for part in message.parts if isinstance(part, ToolReturnPart)]
        if len(done) == 2:
            return ModelResponse(parts=[TextPart("done")])
        call = ToolCallPart("book", {"name": ("Oslo", "Lima")[len(done)]}, tool_call_id=f"call-{len(done)}")
        return ModelResponse(parts=[call])

    async def cancel(undo: Undo) -> None:
        log.append(("cancel", undo.input, undo.output))

    async def fail(data: Any) -> Any:
        raise ValueError("no")

    agent = Agent(FunctionModel(plan), tools=[book])
    return Step.granular("agent", agent, compensate={"book": cancel}, runs_on=queue) >> Step("fails", fail)
