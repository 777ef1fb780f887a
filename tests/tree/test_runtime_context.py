"""Shared state: copies for attempts and branches, and what is merged of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import attrs
import pydantic
import pytest
import trio
from scripted import AT_ONCE, Scripted, collected, failing, same

from flujo_actors import Context, Flujo, Pipeline, Step
from flujo_actors.errors import ContextError, DeclarationError, MergeConflict


class Pydantic(pydantic.BaseModel):
    notes: list[str] = []
    n: int = 0


class FrozenPydantic(pydantic.BaseModel, frozen=True):
    notes: list[str] = []
    n: int = 0


@attrs.define
class Attrs:
    notes: list[str] = attrs.field(factory=list)
    n: int = 0


@attrs.frozen
class FrozenAttrs:
    notes: list[str] = attrs.field(factory=list)
    n: int = 0


@dataclasses.dataclass
class Data:
    notes: list[str] = dataclasses.field(default_factory=list)
    n: int = 0


@dataclasses.dataclass(frozen=True)
class FrozenData:
    notes: list[str] = dataclasses.field(default_factory=list)
    n: int = 0


MODELS = [Pydantic, FrozenPydantic, Attrs, FrozenAttrs, Data, FrozenData]
WRITABLE = [Pydantic, Attrs, Data]


def noting(text: str) -> Any:
    """An agent that writes into the context."""

    async def note(data: Any, *, context: Any) -> Any:
        context.notes.append(text)
        return data

    return note


def setting(**values: Any) -> Any:
    """An agent that sets context values."""

    async def put(data: Any, *, context: Any) -> Any:
        for key, value in values.items():
            setattr(context, key, value)
        return data

    return put


@pytest.mark.trio
@pytest.mark.parametrize("model", [None, *MODELS])
async def test_what_a_step_writes_the_next_one_reads(autojump_clock: Any, model: Any) -> None:
    """With any kind of context model, or none; the final context is of that kind."""
    flujo = Flujo(Step("a", noting("a")) >> Step("b", noting("b")), model, {"notes": ["zero"]})
    result = await flujo.run_async(1)
    assert result.final_context.notes == ["zero", "a", "b"]
    assert isinstance(result.final_context, model or Context)
    assert (await flujo.run_async(1)).final_context.notes == ["zero", "a", "b"]


@pytest.mark.trio
@pytest.mark.parametrize("model", [None, *MODELS])
async def test_updates_context_merges_a_dict_or_a_model_output(autojump_clock: Any, model: Any) -> None:
    """Keys that the output names are replaced, the others stay; the output is still handed on."""
    for output in ({"n": 5}, Data(notes=["x"], n=5), Attrs(notes=["x"], n=5), Pydantic(notes=["x"], n=5)):
        flujo = Flujo(Step("s", Scripted(output), updates_context=True), model, {"notes": ["x"], "n": 0})
        result = await flujo.run_async(1)
        assert (result.final_context.notes, result.final_context.n) == (["x"], 5)
        assert result.output == output


@pytest.mark.trio
@pytest.mark.parametrize("output", [5, "text", None, [("n", 1)]])
async def test_an_output_without_keys_cannot_update_the_context(autojump_clock: Any, output: Any) -> None:
    """The step fails, says why, and leaves the context alone."""
    outcomes = await collected(Flujo(Step("s", Scripted(output), updates_context=True)).run_async(1))
    assert isinstance(outcomes[-1].error, ContextError)
    assert type(output).__name__ in outcomes[-1].feedback


@pytest.mark.trio
@pytest.mark.parametrize("model", MODELS)
async def test_an_update_with_an_unknown_key_names_it(autojump_clock: Any, model: Any) -> None:
    """A model has the fields it has."""
    result = await Flujo(Step("s", Scripted({"m": 1}), updates_context=True), model).run_async(1)
    assert (result.status, result.final_context) == ("failed", model())
    assert "'m'" in result.feedback


@pytest.mark.trio
@pytest.mark.parametrize("model", [Pydantic, FrozenPydantic])
async def test_an_update_that_the_model_refuses_fails_the_step(autojump_clock: Any, model: Any) -> None:
    """pydantic validates what is merged."""
    result = await Flujo(Step("s", Scripted({"n": "many"}), updates_context=True), model).run_async(1)
    assert (result.status, result.final_context.n) == ("failed", 0)


@pytest.mark.trio
async def test_composites_update_the_context_with_their_output(autojump_clock: Any) -> None:
    """The dict of a parallel step is an update like any other."""
    branches = {"a": Step("x", Scripted(1)), "b": Step("y", Scripted(2))}
    result = await Flujo(Step.parallel("p", branches, updates_context=True)).run_async(0)
    assert (result.final_context.a, result.final_context.b) == (1, 2)


# --- isolation ----------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("model", [None, *MODELS])
async def test_a_failed_attempt_leaves_no_trace(autojump_clock: Any, model: Any) -> None:
    """Each attempt starts from the same context; only the one that works counts."""
    seen: list[list[str]] = []

    async def work(data: Any, *, context: Any) -> str:
        seen.append(list(context.notes))
        context.notes.append(f"try {len(seen)}")
        if len(seen) < 3:
            raise ValueError("no")
        return "ok"

    flujo = Flujo(Step("s", work, max_retries=2, backoff=AT_ONCE), model, {"notes": []})
    result = await flujo.run_async(1)
    assert seen == [[], [], []]
    assert result.final_context.notes == ["try 3"]


@pytest.mark.trio
async def test_a_failed_step_leaves_the_context_of_the_last_success(autojump_clock: Any) -> None:
    """The final context of a failed run is what the successful steps made of it."""

    async def spoil(data: Any, *, context: Any) -> None:
        context.notes.append("spoiled")
        raise ValueError("no")

    flujo = Flujo(Step("a", noting("kept")) >> Step("b", spoil), initial_context_data={"notes": []})
    assert (await flujo.run_async(1)).final_context.notes == ["kept"]


@pytest.mark.trio
async def test_a_failed_composite_drops_what_its_children_wrote(autojump_clock: Any) -> None:
    """Also the children that succeeded, on every attempt."""
    body = Step("a", noting("inside")) >> Step("b", failing())
    for composite in (
        Step.loop_until("c", body, lambda output, context: True, max_retries=1, backoff=AT_ONCE),
        Step.parallel("c", {"x": body}, max_retries=1, backoff=AT_ONCE),
        Pipeline((body,), name="c"),
    ):
        flujo = Flujo(Step("first", noting("first")) >> composite, initial_context_data={"notes": []})
        assert (await flujo.run_async(1)).final_context.notes == ["first"]


@pytest.mark.trio
async def test_a_timed_out_attempt_cannot_write_later(autojump_clock: Any) -> None:
    """A thread or task that still holds its copy holds just that."""
    held: list[Any] = []

    async def hold(data: Any, *, context: Any) -> None:
        held.append(context)
        context.notes.append("late")
        await trio.sleep(60)

    step = Step("s", hold, timeout_s=1, fallback=Step("f", noting("fallback")))
    result = await Flujo(step, initial_context_data={"notes": []}).run_async(1)
    held[0].notes.append("even later")
    assert result.final_context.notes == ["fallback"]


@pytest.mark.trio
async def test_runs_do_not_share_the_initial_context(autojump_clock: Any) -> None:
    """Neither with one another nor with the data it was made from."""
    data = {"notes": []}
    flujo = Flujo(Step("a", noting("a")), initial_context_data=data)
    first, second = await flujo.run_async(1), await flujo.run_async(1)
    assert first.final_context.notes == second.final_context.notes == ["a"]
    assert data == {"notes": []}


@pytest.mark.trio
async def test_each_turn_of_a_loop_sees_what_the_last_one_left(autojump_clock: Any) -> None:
    """Context flows from turn to turn, and out of the loop."""
    loop = Step.loop_until("l", Step("a", noting("turn")), lambda output, context: len(context.notes) == 3)
    assert (await Flujo(loop, initial_context_data={"notes": []}).run_async(1)).final_context.notes == ["turn"] * 3


@pytest.mark.trio
async def test_the_message_of_a_pause_only_looks_at_the_context(autojump_clock: Any) -> None:
    """A callable message gets a copy like everybody else."""

    def message(data: Any, context: Any) -> str:
        context.notes.append("from the message")
        return f"ok? {data}"

    human = Step.human_in_the_loop("h", message)
    result = await Flujo(human, initial_context_data={"notes": []}).run_async(1)
    assert (result.feedback, result.final_context.notes) == ("ok? 1", [])


@pytest.mark.trio
async def test_a_context_that_cannot_be_copied_names_the_key(autojump_clock: Any) -> None:
    """The step that would need the copy fails; nothing else breaks."""
    result = await Flujo(Step("a", setting(lock=__import__("threading").Lock())) >> Step("b", noting("x"))).run_async(1)
    assert result.status == "failed"
    assert "'lock'" in result.feedback
    assert "Agent execution failed with ContextError" in result.feedback


@pytest.mark.trio
async def test_parallel_branches_do_not_see_each_other(autojump_clock: Any) -> None:
    """Each has a copy from before, also of nested values."""
    seen: dict[str, list[str]] = {}

    def looking(name: str) -> Any:
        async def look(data: Any, *, context: Any) -> None:
            context.notes.append(name)
            await trio.sleep(1)
            seen[name] = list(context.notes)

        return look

    branches = {name: Step(name, looking(name)) for name in "ab"}
    step = Step.parallel("p", branches, merge="no_merge")
    result = await Flujo(step, initial_context_data={"notes": ["zero"]}).run_async(1)
    assert seen == {"a": ["zero", "a"], "b": ["zero", "b"]}
    assert result.final_context.notes == ["zero"]


# --- merging ------------------------------------------------------------------------------------------------


def branches(**writes: dict[str, Any]) -> dict[str, Step]:
    """Branches that write these values."""
    return {name: Step(name, setting(**values)) for name, values in writes.items()}


@pytest.mark.trio
@pytest.mark.parametrize("model", [None, *WRITABLE])
@pytest.mark.parametrize(
    ("merge", "n"),
    [("overwrite", 2), ("keep_first", 1), ("no_merge", 0)],
)
async def test_merge_strategies_that_choose(autojump_clock: Any, model: Any, merge: Any, n: int) -> None:
    """By declaration order, not by who ended first; keys of one branch only are kept by all but `no_merge`."""

    async def late(data: Any, *, context: Any) -> None:
        await trio.sleep(5)
        context.n = 1

    step = Step.parallel("p", {"a": Step("a", late), **branches(b={"n": 2}, c={"notes": ["c"]})}, merge=merge)
    result = await Flujo(step, model, {"n": 0, "notes": []}).run_async(1)
    assert result.final_context.n == n
    assert result.final_context.notes == ([] if merge == "no_merge" else ["c"])


@pytest.mark.trio
@pytest.mark.parametrize("merge", ["context_update", "error_on_conflict"])
@pytest.mark.parametrize("kind", ["parallel", "map"])
async def test_a_conflict_is_an_error_that_names_the_key_and_both_branches(
    autojump_clock: Any, merge: Any, kind: str
) -> None:
    """For both strict strategies; nothing of either branch is merged."""

    async def put(data: Any, *, context: Any) -> None:
        context.n = data

    if kind == "parallel":
        step: Any = Step.parallel("p", branches(first={"n": 1}, second={"n": 2}), merge=merge)
    else:
        step = Step.map_over("p", Step("put", put), items=[1, 2], merge=merge)
    outcomes = await collected(Flujo(step, initial_context_data={"n": 0}).run_async(1))
    error = outcomes[-1].error
    assert isinstance(error, MergeConflict)
    names = ("first", "second") if kind == "parallel" else ("item 0", "item 1")
    assert (error.key, error.first, error.second) == ("n", *names)
    assert all(repr(word) in outcomes[-1].feedback for word in ("n", *names))
    result = await Flujo(step, initial_context_data={"n": 0}).run_async(1)
    assert (result.status, result.final_context.n) == ("failed", 0)


@pytest.mark.trio
async def test_different_keys_are_no_conflict(autojump_clock: Any) -> None:
    """The default merges what the branches changed."""
    result = await Flujo(Step.parallel("p", branches(a={"x": 1}, b={"y": 2}))).run_async(1)
    assert (result.final_context.x, result.final_context.y) == (1, 2)


@pytest.mark.trio
@pytest.mark.parametrize("merge", ["context_update", "error_on_conflict"])
async def test_branches_that_agree_conflict_too(autojump_clock: Any, merge: Any) -> None:
    """Whether two changes are one cannot be seen from their values."""
    step = Step.parallel("p", branches(a={"x": 1}, b={"x": 1}), merge=merge)
    assert (await Flujo(step).run_async(1)).status == "failed"


@pytest.mark.trio
async def test_a_key_written_back_unchanged_is_not_a_change(autojump_clock: Any) -> None:
    """A branch that sets what was there does not conflict with one that changes it."""
    step = Step.parallel("p", branches(a={"x": 0}, b={"x": 2}))
    assert (await Flujo(step, initial_context_data={"x": 0}).run_async(1)).final_context.x == 2


@pytest.mark.trio
async def test_ignored_branches_merge_nothing(autojump_clock: Any) -> None:
    """A failed branch's changes are dropped, so they cannot conflict either."""

    async def spoil(data: Any, *, context: Any) -> None:
        context.x = "spoiled"
        raise ValueError("no")

    step = Step.parallel("p", {"a": Step("a", spoil), **branches(b={"x": 2})}, on_branch_failure="ignore")
    assert (await Flujo(step).run_async(1)).final_context.x == 2


@pytest.mark.trio
async def test_pipelines_in_branches_are_merged_as_a_whole(autojump_clock: Any) -> None:
    """All steps of a branch count as that branch."""
    branch = Step("one", setting(x=1)) >> Step("two", setting(x=2, y=3))
    result = await Flujo(Step.parallel("p", {"a": branch, "b": Step("b", setting(z=4))})).run_async(1)
    assert vars(result.final_context) == {"x": 2, "y": 3, "z": 4}


def test_wrong_context_declarations_fail_when_they_are_built() -> None:
    """A model that is none, data that does not fit, a merge nobody knows."""
    with pytest.raises(DeclarationError):
        Flujo(Step("s", same), context_model=dict)
    with pytest.raises(DeclarationError, match="Attrs"):
        Flujo(Step("s", same), context_model=Attrs, initial_context_data={"unknown": 1})
    with pytest.raises(DeclarationError):
        Flujo(Step("s", same), context_model=Pydantic, initial_context_data={"n": "x"})
    with pytest.raises(DeclarationError, match="merge"):
        Step.parallel("p", {"a": Step("a", same)}, merge="sometimes")
