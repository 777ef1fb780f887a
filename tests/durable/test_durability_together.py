"""A step that closes what is around it is written with it in one commit, and never told of before."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import trio
import trio.testing

from flujo_actors import Flujo, MemoryStore, Pipeline, PostStep, Processors, Step, Success
from flujo_actors._core.outcomes import RunId

RUN = RunId("run")


async def agent(data: Any) -> Any:
    return data


def step(name: str, **options: Any) -> Step:
    return Step(name, agent, **options)


class Commits(MemoryStore):
    """Keeps what each commit said, by kind and path."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[list[str]] = []

    def append(self, batch: Any) -> Any:
        self.said.append([f"{each.kind} {each.path}".strip() for append in batch for each in append.records])
        return super().append(batch)


def commits_of(declared: Any, **options: Any) -> list[list[str]]:
    store = Commits()
    assert Flujo(declared, store=store, **options).run(0, run_id=RUN).success
    return store.said


def test_the_last_step_is_written_with_the_end_of_the_run() -> None:
    """Nothing is done between the two, and one commit is as durable as two."""
    assert commits_of(step("a") >> step("b")) == [["settled a"], ["settled b", "ended"]]


def test_a_choice_is_written_with_its_branch() -> None:
    """However deep the branch is."""
    inner = Pipeline([step("b"), step("c")], name="inner")
    choice = Step.branch_on("which", lambda data, context: "x", {"x": step("a") >> inner, "y": step("d")})
    first, second, third, last = commits_of(choice >> step("e"))
    assert [first[-1], second[-1], last] == ["settled which/x/a", "settled which/x/inner/b", ["settled e", "ended"]]
    assert third == [f"settled which{end}" for end in ("/x/inner/c", "/x/inner", "/x", "")]


def test_a_parallel_step_is_written_with_the_branch_that_ends_last() -> None:
    """The others are written when they end."""
    store, gate = Commits(), trio.Event()

    async def slow(data: int) -> int:
        await gate.wait()
        return data

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flujo.run_async, 0)
            while not store.said:
                await trio.sleep(0.001)
            gate.set()

    flujo = Flujo(Step.parallel("both", {"slow": Step("s", slow), "fast": step("f")}) >> step("end"), store=store)
    trio.run(main)
    [fast, slow_one, end] = store.said
    assert fast[-1] == "settled both/fast"
    assert slow_one == ["settled both/slow", "settled both"]
    assert end == ["settled end", "ended"]


@pytest.mark.parametrize(
    "options", [{"validators": [lambda output: True]}, {"processors": Processors(after=lambda data: data)}]
)
def test_a_step_that_is_judged_after_its_branch_is_written_after_it(options: dict[str, Any]) -> None:
    """A judge may take its time, and what was done before is not lost meanwhile."""
    choice = Step.branch_on("which", lambda data, context: "x", {"x": step("a")}, **options)
    assert commits_of(choice >> step("b"))[:2] == [["started which", "settled which/x"], ["settled which"]]


def test_a_last_step_that_failed_is_written_at_once() -> None:
    """What comes after a failure is not known beforehand."""

    async def fails(data: int) -> int:
        raise ValueError("no")

    store = Commits()
    assert not Flujo(step("a") >> Step("b", fails), store=store).run(0).success
    assert store.said == [["settled a"], ["settled b"], ["ended"]]


def test_who_watches_a_run_is_told_of_nothing_that_is_not_stored() -> None:
    """A watcher may act on what it is told, in another process, at that moment."""
    store = Commits()

    async def main() -> None:
        async with Flujo(step("a") >> step("b"), store=store).run_async(0, run_id=RUN) as run:
            async for outcome in run:
                if isinstance(outcome, Success):
                    assert f"settled {outcome.step_result.name}" in [each for said in store.said for each in said]

    trio.run(main)
    assert store.said == [["settled a"], ["settled b"], ["ended"]]


def test_hooks_are_told_of_nothing_that_is_not_stored() -> None:
    """The same for hooks of this process."""
    store, seen = Commits(), []

    async def hook(event: Any) -> None:
        if isinstance(event, PostStep):
            seen.append((event.step_name, [each for said in store.said for each in said]))

    assert Flujo(step("a") >> step("b"), store=store, hooks=hook).run(0).success
    assert seen == [("a", ["settled a"]), ("b", ["settled a", "settled b"])]


def test_a_run_that_is_cut_short_leaves_what_was_held() -> None:
    """A branch had ended, and waited for the commit of another, when the caller left: it is not done again."""
    held_up, done, resumed = threading.Event(), [], threading.Event()

    class Slow(Commits):
        """Takes its time for the first branch that ends."""

        def append(self, batch: Any) -> Any:
            if not held_up.is_set():
                held_up.set()
                assert resumed.wait(120)
            return super().append(batch)

    async def late(data: int) -> int:
        while not held_up.is_set():
            await trio.sleep(0.001)
        done.append(data)
        return data

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flujo.run_async, 0)
            while not done:
                await trio.sleep(0.001)
            await trio.testing.wait_all_tasks_blocked(0.01)
            nursery.cancel_scope.cancel()
            resumed.set()

    store = Slow()
    flujo = Flujo(Step.parallel("both", {"early": step("e"), "late": Step("l", late)}) >> step("end"), store=store)
    trio.run(main)
    assert [said[-1:] for said in store.said] == [["settled both/early"], ["settled both/late"]]
    [run_id] = [run.run_id for run in store.find(_all())]
    assert flujo.resume(run_id).success
    assert done == [0]


def _all() -> Any:
    from flujo_actors._core.records.records import RunQuery

    return RunQuery()
