"""Random pipelines against a small model: what is done and undone, in which order, also if the process goes away."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors import Backoff, Compensate, Flujo, MemoryStore, Pipeline, Step, Undo

Kind = Literal["call", "chain", "branches", "ignoring", "loop"]


@attrs.define(kw_only=True)
class Node:
    """A step of a random pipeline; branches run one at a time, so that there is one order of everything."""

    kind: Kind
    name: str
    inside: list[Node]
    fails: int
    """How many of its first calls fail, if it is a call."""
    retries: int
    compensated: bool
    when: Any


def _nodes(names: Iterator[int], shape: Any) -> Node:
    kind, fails, retries, compensated, when, inside = shape
    name = f"{kind[0]}{next(names)}"
    children = [_nodes(names, each) for each in inside]
    return Node(kind=kind, name=name, inside=children, fails=fails, retries=retries, compensated=compensated, when=when)


_when = st.sampled_from(["started", "completed"])
_call = st.tuples(st.just("call"), st.integers(0, 2), st.integers(0, 1), st.booleans(), _when, st.just([]))


def _around(inner: Any) -> Any:
    kinds = st.sampled_from(["chain", "branches", "ignoring", "loop"])
    inside = st.lists(inner, min_size=1, max_size=3)
    return st.tuples(kinds, st.just(0), st.integers(0, 1), st.booleans(), _when, inside)


_pipelines = st.recursive(_call, _around, max_leaves=8).map(lambda shape: _nodes(iter(range(1000)), shape))


# --- the model ----------------------------------------------------------------------------------------------


class Cut(Exception):
    """Somebody has cancelled the run; what is left to undo then."""

    def __init__(self, left: list[str]) -> None:
        self.left = left


@attrs.define
class Model:
    """What should happen: a recursion over the tree, with nothing of the machinery."""

    cut_at: int | None = None
    log: list[str] = attrs.field(factory=list)
    failed: dict[str, int] = attrs.field(factory=dict)

    def passes(self, text: str, left: list[str]) -> None:
        """Something is done; if the run is cancelled meanwhile, this is left."""
        self.log.append(text)
        if len(self.log) == self.cut_at:
            raise Cut(left)

    def run(self, node: Node) -> tuple[bool, list[str]]:
        """Whether it succeeded, and what it leaves to undo."""
        for attempt in range(node.retries + 1):
            done, left = self._call(node) if node.kind == "call" else self._inside(node)
            if done:
                return True, [node.name] if node.compensated else left
            if node.kind == "call" and attempt < node.retries:
                continue
            self.undo(left if node.kind != "call" else [])
        undoable = node.kind == "call" and node.compensated and node.when == "started"
        return False, [f"{node.name}?"] if undoable else []

    def _call(self, node: Node) -> tuple[bool, list[str]]:
        undoable = node.compensated and node.when == "started"
        self.passes(node.name, [f"{node.name}?"] if undoable else [])
        self.failed[node.name] = self.failed.get(node.name, 0) + 1
        return self.failed[node.name] > node.fails, []

    def _inside(self, node: Node) -> tuple[bool, list[str]]:
        left: list[str] = []
        succeeded = 0
        for child in node.inside:
            try:
                done, more = self.run(child)
                if not done and node.kind == "ignoring":
                    self.undo(more)
                    continue
            except Cut as cut:
                raise Cut([*left, *cut.left]) from None
            succeeded += done
            left += more
            if not done:
                return False, left
        return bool(succeeded), left

    def undo(self, left: list[str]) -> None:
        rest = list(left)
        while rest:
            self.passes(f"undo {rest[-1]}", list(rest))
            rest.pop()

    def cancelled(self, node: Node) -> list[str] | None:
        """What is undone if the run is cancelled at that point; `None` if it ends before."""
        try:
            done, left = self.run(node)
            if not done:
                self.undo(left)
        except Cut as cut:
            return [f"undo {name}" for name in reversed(cut.left)]
        return None


# --- the real thing -----------------------------------------------------------------------------------------


@attrs.define
class Real:
    """The same tree as a pipeline that writes down what it does; at one point, the process goes away."""

    cut_at: int | None = None
    log: list[str] = attrs.field(factory=list)
    failed: dict[str, int] = attrs.field(factory=dict)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)

    async def passes(self, text: str) -> None:
        self.log.append(text)
        if len(self.log) == self.cut_at:
            self.scope.cancel()
            await trio.sleep_forever()

    def step(self, node: Node) -> Any:
        config: dict[str, Any] = {"max_retries": node.retries, "backoff": Backoff.none()}
        if node.compensated:
            config["compensate"] = Compensate(self._undo(node.name), when=node.when)
        if node.kind == "call":
            return Step(node.name, self._agent(node), **config)
        inside = [self.step(child) for child in node.inside]
        match node.kind:
            case "chain" | "loop":
                body = Pipeline(inside)
                return Step.loop_until(node.name, body, lambda output, context: True, **config)
            case _:
                ignores = "ignore" if node.kind == "ignoring" else "propagate"
                branches = {each.name: each for each in inside}
                return Step.parallel(node.name, branches, on_branch_failure=ignores, max_concurrency=1, **config)

    def _agent(self, node: Node) -> Any:
        async def agent(data: Any) -> str:
            await self.passes(node.name)
            self.failed[node.name] = self.failed.get(node.name, 0) + 1
            if self.failed[node.name] <= node.fails:
                raise ValueError(node.name)
            return node.name

        return agent

    def _undo(self, name: str) -> Any:
        async def undo(undo: Undo) -> None:
            await self.passes(f"undo {name}" + ("" if undo.completed else "?"))

        return undo

    async def cancelled(self, node: Node) -> Any:
        """Cancel the run where it is cut off, by another process."""
        store, result = MemoryStore(), None
        with self.scope:
            result = await Flujo(self.step(node), store=store).run_async("x", run_id="r")
        self.cut_at = None
        return result or await Flujo(self.step(node), store=store).cancel_async("r", "enough")

    async def played(self, node: Node) -> Any:
        store, result = MemoryStore(), None
        with self.scope:
            result = await Flujo(self.step(node), store=store).run_async("x", run_id="r")
        if result is None:
            self.cut_at = None
            result = await Flujo(self.step(node), store=store).resume_async("r")
        return result


def _expected(node: Node) -> tuple[bool, list[str]]:
    model = Model()
    done, left = model.run(node)
    if not done:
        model.undo(left)
    return done, model.log


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(_pipelines)
def test_a_random_pipeline_does_and_undoes_what_the_model_says(node: Node) -> None:
    """Chains, loops, retries and branches, nested at random, with calls that fail at random."""
    done, log = _expected(node)
    real = Real()
    result = trio.run(real.played, node)
    assert real.log == log
    assert result.success is done
    undone = [line.removeprefix("undo ").removesuffix("?") for line in log if line.startswith("undo ")]
    assert [each.step_name for each in result.undone] == undone


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(_pipelines, st.integers(1, 12))
def test_a_random_pipeline_that_is_cut_off_anywhere_comes_to_the_same_end(node: Node, place: int) -> None:
    """What was in flight is done again, and nothing else."""
    done, log = _expected(node)
    real = Real(cut_at=place)
    result = trio.run(real.played, node)
    again = [*real.log[: place - 1], *real.log[place:]] if place <= len(log) else real.log
    assert again == log
    assert result.success is done


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(_pipelines, st.integers(1, 12))
def test_a_random_pipeline_that_is_cancelled_anywhere_is_undone(node: Node, place: int) -> None:
    """By whoever has the pipeline: all that was done and is not undone yet, and what was in flight."""
    model, real = Model(cut_at=place), Real(cut_at=place)
    expected = model.cancelled(node)
    result = trio.run(real.cancelled, node)
    assert real.log[: len(model.log)] == model.log
    assert real.log[len(model.log) :] == (expected or [])
    assert (result.status == "aborted") is (expected is not None)
