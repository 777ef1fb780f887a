"""Steps that run elsewhere: as they would at home, whatever kind they are, and whatever they come to."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
import trio
from fleet_waiting import until
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from pydantic_ai import Agent

from flujo_actors import (
    AbortRun,
    Chunk,
    Context,
    DeclarationError,
    Flujo,
    MemoryStore,
    Pipeline,
    RunClient,
    Step,
    UsageLimitExceededError,
)
from flujo_actors.telemetry.otel import OtelSink
from flujo_actors.testing import scripted_model
from kit.postgres_server import session_server

pytestmark = pytest.mark.slow

SETTINGS = {"durability": {"lease_s": 60}, "fleet": {"look_s": 0.3, "unclaimed_s": 3.0}}


@pytest.fixture
def url() -> str:
    return session_server().fresh_url()


def make(pipeline: Any, url: str, **options: Any) -> Flujo[Any, Any, Any]:
    return Flujo(pipeline, store=url, engine="postgres", settings=SETTINGS, **options)


@asynccontextmanager
async def fleet(flujo: Flujo[Any, Any, Any], queue: str = "gpu", slots: int = 8) -> AsyncIterator[Any]:
    """A worker of that queue, beside the caller."""
    async with flujo.worker(queues=queue, slots=slots, grace_s=0) as worker:
        yield worker


async def double(number: int) -> int:
    return 2 * number


def square(number: int) -> int:
    return number * number


def test_a_step_runs_elsewhere(url: str) -> None:
    """Its output is the run's; its own run is not listed, and goes with its root."""
    flujo = make(Step("double", double, runs_on="gpu") >> Step("square", square), url)

    async def main() -> None:
        async with fleet(flujo):
            with trio.fail_after(120):
                result = await flujo.run_async(21, run_id="root")
        assert (result.status, result.output) == ("completed", 42 * 42)
        assert [each.name for each in result.step_history] == ["double", "square"]

    trio.run(main)
    client = RunClient(url, allow_blocking=True)
    assert [info.run_id for info in client.list()] == ["root"]
    assert rows(url, "SELECT run_id, status FROM flujo_runs ORDER BY id") == [
        ("root", "completed"),
        ("root@double", "completed"),
    ]
    client.delete("root")
    assert rows(url, "SELECT run_id FROM flujo_runs") == []
    assert rows(url, "SELECT id FROM procrastinate_jobs") == []


def test_a_remote_step_reads_the_labels_of_its_run(url: str) -> None:
    """It is not listed by them itself."""

    async def tenant(number: int, *, labels: Any) -> str:
        return f"{number} of {labels['tenant']}"

    flujo = make(Step.map_over("all", Step("tenant", tenant), runs_on="gpu"), url)

    async def main() -> Any:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await flujo.run_async([1, 2], run_id="root", labels={"tenant": "7"})

    assert trio.run(main).output == ["1 of 7", "2 of 7"]
    client = RunClient(url, allow_blocking=True)
    assert [info.run_id for info in client.list(labels={"tenant": "7"})] == ["root"]
    assert rows(url, "SELECT name, value FROM flujo_labels") == [("tenant", "7")]


def test_metrics_of_a_remote_step_have_the_labels_of_its_run(url: str) -> None:
    """Also where the caller has no telemetry; only the named ones."""
    reader = InMemoryMetricReader()
    agent = Agent(scripted_model("yes"))
    sink = OtelSink(TracerProvider(), MeterProvider([reader]))
    telemetry = {"telemetry": {"sinks": [sink], "metric_labels": ["tenant"]}}

    def steps() -> Any:
        return Pipeline([Step("ask", agent, runs_on="gpu")], name="asks")

    caller = make(steps(), url)
    served = Flujo(steps(), store=url, engine="postgres", settings={**SETTINGS, **telemetry})

    async def main() -> None:
        async with fleet(served):
            with trio.fail_after(120):
                await caller.run_async("hello", labels={"tenant": "7", "user": "ada"})

    trio.run(main)
    data: Any = reader.get_metrics_data()
    found = {each.name: each for scope in data.resource_metrics[0].scope_metrics for each in scope.metrics}
    points = found["gen_ai.client.token.usage"].data.data_points
    assert {point.attributes.get("flujo.label.tenant") for point in points} == {"7"}
    assert all("flujo.label.user" not in point.attributes for point in points)


def rows(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url) as db:
        return db.execute(statement).fetchall()  # type: ignore[call-overload]


def test_the_items_of_a_map_that_runs_elsewhere_do(url: str) -> None:
    """Also if its body is nothing but a call, which would need no task at home."""
    flujo = make(Step.map_over("all", Step("double", double), runs_on="gpu"), url)

    async def main() -> Any:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await flujo.run_async([1, 2], run_id="root")

    assert trio.run(main).output == [2, 4]
    assert rows(url, "SELECT count(*) FROM flujo_runs WHERE parent = 'root'") == [(2,)]


def test_without_an_engine_it_means_nothing() -> None:
    """The same pipeline runs in one process, on any store or none."""
    pipeline = Step("double", double, runs_on="gpu")
    assert Flujo(pipeline).run(1).output == 2
    assert Flujo(pipeline, store=MemoryStore()).run(1).output == 2
    assert Flujo(Step.map_over("all", pipeline, batch=2, runs_on="gpu")).run([1, 2, 3]).output == [2, 4, 6]


def test_a_store_that_other_machines_cannot_reach_is_refused(tmp_path: Any) -> None:
    """When the `Flujo` is made, with what to do about it."""

    class Any_:
        def prepare(self) -> None: ...
        def submit(self, tickets: Any, connection: Any = None) -> None: ...
        def again(self, tickets: Any) -> None: ...
        def serve(self, queues: Any, slots: int, play: Any, stopping: Any) -> None: ...
        def withdraw(self, run_ids: Any) -> None: ...

    with pytest.raises(DeclarationError, match="postgresql://"):
        Flujo(Step("double", double, runs_on="gpu"), store=f"sqlite:///{tmp_path}/a.db", engine=Any_())
    Flujo(Step("double", double), store=f"sqlite:///{tmp_path}/a.db", engine=Any_())


@pytest.mark.parametrize("wrong", ["", 3, "x" * 101, "a\nb"])
def test_a_queue_without_a_proper_name_is_refused(wrong: Any) -> None:
    """When the step is declared."""
    with pytest.raises(DeclarationError, match="runs_on"):
        Step("double", double, runs_on=wrong)


def test_where_a_step_runs_does_not_make_it_another_one(url: str) -> None:
    """A run that began at home may go on elsewhere, and the other way round."""
    begun: list[str] = []

    async def work(number: int) -> int:
        begun.append("work")
        return number + 1

    def pipeline(runs_on: str | None) -> Any:
        ask = Step.human_in_the_loop("ask", "May I?")
        return Pipeline([Step("one", work, runs_on=runs_on), ask, Step("two", double, runs_on=runs_on)], name="p")

    at_home = Flujo(pipeline(None), store=url, settings=SETTINGS)
    paused = at_home.run(1, run_id="r")
    elsewhere = make(pipeline("gpu"), url)

    async def main() -> Any:
        async with fleet(elsewhere):
            return await elsewhere.resume_async(paused.state_token, 5)

    assert trio.run(main).output == 10
    assert begun == ["work"]


def test_the_items_of_a_map_run_elsewhere(url: str) -> None:
    """In item order; one by one, together, and where the map itself says so."""
    for number, pages in enumerate(
        [
            Step.map_over("pages", Step("square", square, runs_on="gpu")),
            Step.map_over("pages", Step("square", square, runs_on="gpu"), batch=7),
            Step.map_over("pages", Step("square", square), runs_on="gpu", batch=10),
            Step.map_over("pages", Step("square", square) >> Step("double", double), runs_on="gpu", max_concurrency=5),
        ]
    ):
        flujo = make(pages, url)

        async def main(flujo: Flujo[Any, Any, Any] = flujo, number: int = number) -> Any:
            async with fleet(flujo):
                with trio.fail_after(120):
                    return await flujo.run_async(list(range(30)), run_id=f"map {number}")

        factor = 2 if number == 3 else 1
        assert trio.run(main).output == [factor * each * each for each in range(30)]


def test_contexts_are_merged_as_at_home(url: str) -> None:
    """What remote branches wrote comes back; a conflict is the same error."""

    def note(key: str, value: int) -> Any:
        async def write(data: int, *, context: Context) -> int:
            setattr(context, key, value)
            return data

        return write

    def pipeline(other: str, runs_on: str | None) -> Any:
        a = Step("a", note("a", 1), runs_on=runs_on)
        return Step.parallel("both", {"a": a, "b": Step("b", note(other, 2), runs_on=runs_on)})

    for other in ("b", "a"):
        home = Flujo(pipeline(other, None)).run(1)
        flujo = make(pipeline(other, "gpu"), url)

        async def main(flujo: Flujo[Any, Any, Any] = flujo) -> Any:
            async with fleet(flujo):
                return await flujo.run_async(1)

        away = trio.run(main)
        assert (away.status, away.output, away.feedback) == (home.status, home.output, home.feedback)
        assert away.final_context == home.final_context
        assert (home.status, getattr(away.final_context, "a", None)) == (
            ("completed", 1) if other == "b" else ("failed", None)
        )


def test_failures_retries_and_fallbacks_are_as_at_home(url: str) -> None:
    """The same feedback, attempts and metadata."""

    def failing(data: int) -> int:
        raise ValueError(f"no {data}")

    def pipeline(runs_on: str | None) -> Any:
        wrong = Step("wrong", failing, max_retries=2, runs_on=runs_on)
        mended = Step("mended", failing, fallback=Step("other", double), runs_on=runs_on)
        return Step.parallel("both", {"w": wrong, "m": mended}, on_branch_failure="ignore")

    home = Flujo(pipeline(None)).run(3)
    flujo = make(pipeline("gpu"), url)

    async def main() -> Any:
        async with fleet(flujo):
            return await flujo.run_async(3)

    away = trio.run(main)
    assert (away.status, away.output, away.feedback) == (home.status, home.output, home.feedback)
    assert [shape(each) for each in away.step_history] == [shape(each) for each in home.step_history]


def shape(result: Any) -> Any:
    inside = [shape(each) for each in result.step_history]
    return result.name, result.success, result.attempts, result.feedback, dict(result.metadata), inside


def test_a_control_error_ends_the_whole_run(url: str) -> None:
    """Raised at the caller, with the partial result; siblings are stopped."""
    cleaned: list[str] = []
    begun = trio.Event()

    async def endless(data: int) -> int:
        begun.set()
        try:
            await trio.sleep_forever()
        finally:
            cleaned.append("endless")
        return data

    async def spend(data: int) -> int:
        await begun.wait()
        raise UsageLimitExceededError("too much")

    branches = {"a": Step("a", endless, runs_on="gpu"), "b": Step("b", spend, runs_on="gpu")}
    flujo = make(Step.parallel("both", branches), url)

    async def main() -> None:
        async with fleet(flujo):
            with pytest.raises(UsageLimitExceededError, match="too much") as raised:
                await flujo.run_async(1)
            assert raised.value.result.status == "failed"
            assert cleaned == ["endless"]

    trio.run(main)


def test_an_abort_aborts(url: str) -> None:
    """As it does at home."""

    async def stop(data: int) -> int:
        raise AbortRun("enough")

    flujo = make(Step("stop", stop, runs_on="gpu"), url)

    async def main() -> Any:
        async with fleet(flujo):
            return await flujo.run_async(1)

    home = Flujo(Step("stop", stop)).run(1)
    away = trio.run(main)
    assert (away.status, away.feedback) == (home.status, home.feedback)


def test_a_question_asked_elsewhere_is_the_runs_own(url: str) -> None:
    """Its token is answered like any other, by whoever reaches the store; the remote step goes on with it."""
    begun: list[str] = []

    async def before(data: str) -> str:
        begun.append("before")
        return data

    ask = Pipeline([Step("before", before), Step.human_in_the_loop("ask", "May I?"), Step("after", shouted)])
    flujo = make(Step.branch_on("all", lambda data, context: "x", {"x": ask}, runs_on="gpu"), url)

    async def main() -> Any:
        async with fleet(flujo):
            paused = await flujo.run_async("tea", run_id="r")
            assert (paused.status, paused.feedback) == ("paused", "May I?")
            assert RunClient(url, allow_blocking=True).get("r").state_token == paused.state_token
            await trio.to_thread.run_sync(RunClient(url, allow_blocking=True).answer, paused.state_token, "yes")
            return await flujo.resume_async("r")

    assert trio.run(main).output == "YES"
    assert begun == ["before"]


def shouted(text: str) -> str:
    return text.upper()


def test_a_caller_that_leaves_stops_its_remote_steps(url: str) -> None:
    """Their cleanup has run when it is gone, the slot is free, and the run can be resumed."""
    events: list[str] = []

    async def slow(data: int) -> int:
        events.append("begun")
        try:
            if events.count("begun") == 1:
                await trio.sleep_forever()
        finally:
            events.append("cleaned")
        return data

    flujo = make(Step("slow", slow, runs_on="gpu"), url)

    async def main() -> Any:
        async with fleet(flujo, slots=1) as worker:
            with trio.move_on_after(60) as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(leave_when, scope, lambda: "begun" in events)
                    await flujo.run_async(5, run_id="r")
            assert events == ["begun", "cleaned"]
            await trio.to_thread.run_sync(until, lambda: not worker.busy)
            return await flujo.resume_async("r")

    result = trio.run(main)
    assert (result.status, result.output) == ("completed", 5)


async def leave_when(scope: trio.CancelScope, look: Any) -> None:
    while not look():
        await trio.sleep(0.01)
    scope.cancel()


def test_only_named_variables_are_carried(url: str) -> None:
    """As JSON data; the others stay at home."""
    tenant: contextvars.ContextVar[Any] = contextvars.ContextVar("tenant", default=None)
    secret: contextvars.ContextVar[Any] = contextvars.ContextVar("secret", default=None)

    async def look(data: int) -> list[Any]:
        return [tenant.get(), secret.get()]

    flujo = make(Step("look", look, runs_on="gpu"), url, carry=[tenant])

    async def main() -> Any:
        async with fleet(flujo):
            tenant.set({"id": 7})
            secret.set("hush")
            return await flujo.run_async(1)

    assert trio.run(main).output == [{"id": 7}, None]
    with pytest.raises(DeclarationError, match="carry"):
        make(Step("look", look), url, carry=["tenant"])


def test_a_run_that_waits_for_others_needs_no_slot(url: str) -> None:
    """Remote steps inside remote steps, in the same queue, with one slot: nobody waits for ever."""
    inner = Step.map_over("inner", Step("double", double, runs_on="gpu"))
    flujo = make(Step.parallel("outer", {"a": inner, "b": Step("one", square, runs_on="gpu")}, runs_on="gpu"), url)

    async def main() -> Any:
        async with flujo.worker(queues=["gpu", "default"], slots=1, grace_s=0):
            run_id = await flujo.submit([1, 2, 3])
            await trio.to_thread.run_sync(
                until, lambda: RunClient(url, allow_blocking=True).get(run_id).status != "running"
            )
            return RunClient(url, allow_blocking=True).state(run_id)

    flujo2 = make(Step.map_over("outer", inner, runs_on="gpu"), url)

    async def nested() -> Any:
        async with flujo2.worker(queues=["gpu"], slots=1, grace_s=0):
            with trio.fail_after(120):
                return await flujo2.run_async([[1, 2], [3]])

    assert trio.run(nested).output == [[2, 4], [6]]


def test_what_cannot_be_stored_cannot_go_elsewhere(url: str) -> None:
    """A failure of that step, which says so."""
    flujo = make(Step("first", lambda data: object()) >> Step("double", double, runs_on="gpu"), url)

    async def main() -> Any:
        return await flujo.run_async(1)

    result = trio.run(main)
    assert result.status == "failed"
    assert "store" in (result.feedback or "")


class Talking:
    """An agent that streams so many pieces, one of them of a megabyte."""

    def __init__(self, pieces: int) -> None:
        self.pieces, self.said = pieces, 0

    async def stream(self, data: Any) -> AsyncIterator[str]:
        for number in range(self.pieces):
            self.said += 1
            yield "x" * 1_000_000 if number == 3 else f"{number} "

    async def run(self, data: Any) -> str:
        raise AssertionError("it is streamed")


def test_chunks_come_in_order_and_none_twice(url: str) -> None:
    """A thousand of them, one of a megabyte; the final text is what they add up to."""
    flujo = make(Step("talk", Talking(1000), runs_on="gpu") >> Step("length", lambda text: len(text)), url)

    async def main() -> tuple[list[Any], Any]:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await outcomes_of(flujo.run_async("go"))

    chunks, rest = trio.run(main)
    assert [chunk.seq for chunk in chunks] == list(range(1000))
    assert len(chunks[3].data) == 1_000_000
    assert rest[0].step_result.output == "".join(chunk.data for chunk in chunks)
    assert [each.step_result.name for each in rest] == ["talk", "length"]


def test_a_remote_step_that_nobody_sees_is_not_streamed(url: str) -> None:
    """The worker knows whose chunks the reader wants, inside a remote step, too; outcomes come all the same."""
    seen, unseen = Speaking(), Speaking()
    flujo = make(Step.parallel("both", {"seen": Step("a", seen), "unseen": Step("b", unseen)}, runs_on="gpu"), url)

    async def main() -> tuple[list[Any], Any]:
        async with fleet(flujo):
            with trio.fail_after(120):
                return await outcomes_of(flujo.run_async("go", chunks=["a"]))

    chunks, rest = trio.run(main)
    assert [(chunk.path, chunk.data) for chunk in chunks] == [("both/seen", "sa"), ("both/seen", "id")]
    assert rest[-1].step_result.output == {"seen": "said", "unseen": "said"}
    assert {each.path for each in rest} == {"both/seen", "both/unseen", "both"}
    assert (seen.asked, unseen.asked) == (["stream"], ["run"])


class Speaking:
    """An agent that can answer both ways, and notes which it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def stream(self, data: Any) -> AsyncIterator[str]:
        self.asked.append("stream")
        yield "sa"
        yield "id"

    async def run(self, data: Any) -> str:
        self.asked.append("run")
        return "said"


async def outcomes_of(handle: Any) -> tuple[list[Any], Any]:
    chunks: list[Any] = []
    rest: list[Any] = []
    async for outcome in handle:
        (chunks if isinstance(outcome, Chunk) else rest).append(outcome)
    return chunks, rest


def test_a_slow_reader_slows_a_remote_step(url: str) -> None:
    """It is at most a window ahead."""
    talking = Talking(200_000)
    flujo = make(Step("talk", talking, runs_on="gpu"), url)

    async def main() -> None:
        async with fleet(flujo), flujo.run_async("go") as run:
            reader = run.__aiter__()
            for _ in range(10):
                await reader.__anext__()
            before = -1
            while before != talking.said:
                before = talking.said
                await trio.sleep(0.5)
            assert talking.said < 100_000

    trio.run(main)


def test_steps_inside_a_remote_step_are_told_too(url: str) -> None:
    """As they are at home."""
    inner = Step.branch_on(
        "all", lambda data, context: "x", {"x": Step("a", double) >> Step("b", double)}, runs_on="gpu"
    )

    async def main() -> Any:
        flujo = make(inner, url)
        async with fleet(flujo):
            _, rest = await outcomes_of(flujo.run_async(1))
            return [each.step_result.name for each in rest]

    async def at_home() -> Any:
        _, rest = await outcomes_of(Flujo(inner).run_async(1))
        return [each.step_result.name for each in rest]

    assert trio.run(main) == trio.run(at_home)


def test_an_asyncio_program_calls_and_plays(url: str) -> None:
    """Caller and worker on asyncio, with steps written for it."""

    async def slow(number: int) -> int:
        await asyncio.sleep(0.01)
        return number + 1

    flujo = make(Step.map_over("all", Step("slow", slow, runs_on="gpu"), batch=2), url)

    async def main() -> Any:
        async with flujo.worker("gpu", slots=4, grace_s=0):
            return await asyncio.wait_for(flujo.run_async([1, 2, 3]), 120)

    assert asyncio.run(main()).output == [2, 3, 4]


class Tasks(trio.abc.Instrument):
    """Lists the names of the tasks that are spawned."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def task_spawned(self, task: trio.lowlevel.Task) -> None:
        self.names.append(task.name)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_remote_step_is_a_task_of_its_caller_and_one_of_its_worker(url: str, batch: int) -> None:
    """Both are named by its path: the worker performs it by the same gate."""
    items = Step.map_over("items", Step("double", double, runs_on="gpu"), batch=batch)
    flujo, tasks = make(items, url), Tasks()

    async def main() -> None:
        async with fleet(flujo):
            with trio.fail_after(120):
                result = await flujo.run_async([1, 2, 3])
        assert result.output == [2, 4, 6]

    trio.run(main, instruments=[tasks])
    assert [tasks.names.count(f"items/~i{number}") for number in range(3)] == [2, 2, 2]
    assert tasks.names.count("items") == 1
