"""Data that is read more than once: every reader gets it as it was."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, model_validator

from flujo_actors import Backoff, DeclarationError, Flujo, PreRun, PreStep, Redirect, Step


class Notes(BaseModel):
    n: int = 0
    log: list[str] = []


def spoiler(seen: list[Any], *, failing: int = 0) -> Any:
    """A function that notes its data, changes it, and fails the first times."""

    async def spoil(data: dict[str, Any]) -> dict[str, Any]:
        seen.append({**data})
        data["n"] = data["n"] + 1
        if len(seen) <= failing:
            raise ValueError("not yet")
        return data

    return spoil


async def make(data: Any) -> dict[str, int]:
    return {"n": 0}


@pytest.mark.trio
async def test_a_retry_gets_the_data_as_it_was(autojump_clock: Any) -> None:
    """And the outcome that was told of the step before stays what it was."""
    seen: list[Any] = []
    step = Step("spoil", spoiler(seen, failing=2), max_retries=2, backoff=Backoff.none())
    result = await Flujo(Step("make", make) >> step).run_async(1)
    assert (result.output, seen) == ({"n": 1}, [{"n": 0}] * 3)
    assert result.step_history[0].output == {"n": 0}


@pytest.mark.trio
async def test_a_fallback_gets_the_data_as_it_was(autojump_clock: Any) -> None:
    """Whatever the primary did to it."""
    seen: list[Any] = []
    step = Step("spoil", spoiler(seen, failing=1), fallback=Step("again", spoiler(seen)))
    assert (await Flujo(Step("make", make) >> step).run_async(1)).output == {"n": 1}
    assert seen == [{"n": 0}, {"n": 0}]


@pytest.mark.trio
async def test_another_agent_gets_the_data_as_it_was(autojump_clock: Any) -> None:
    """A redirect is another reader."""
    first: list[Any] = []
    second: list[Any] = []
    other = spoiler(second)
    step = Step("spoil", spoiler(first), validators=[lambda out: None if second else Redirect(to=other, feedback="no")])
    assert (await Flujo(Step("make", make) >> step).run_async(1)).success
    assert (first, second) == ([{"n": 0}], [{"n": 0}])


@pytest.mark.trio
async def test_branches_do_not_see_each_other_at_work(autojump_clock: Any) -> None:
    """Every branch has its own data, and so has what stands around them when it is tried again."""
    seen: list[Any] = []
    branches = {key: Step(key, spoiler(seen, failing=1)) for key in "abc"}
    step = Step.parallel("fan", branches, max_retries=1, backoff=Backoff.none(), max_concurrency=1)
    result = await Flujo(Step("make", make) >> step).run_async(1)
    assert result.output == {key: {"n": 1} for key in "abc"}
    assert seen == [{"n": 0}] * 4


@pytest.mark.trio
async def test_items_that_are_one_object_are_copied(autojump_clock: Any) -> None:
    """A list may hold the same thing twice."""
    seen: list[Any] = []
    shared = {"n": 0}
    assert (await Flujo(Step.map_over("each", Step("s", spoiler(seen)))).run_async([shared] * 3)).success
    assert seen == [{"n": 0}] * 3


@pytest.mark.trio
@pytest.mark.parametrize("where", ["input", "items"])
async def test_a_declaration_stays_what_it_is(autojump_clock: Any, where: str) -> None:
    """What a step does to a declared value is not there in the next run."""
    seen: list[Any] = []
    body = Step("s", spoiler(seen), input={"n": 0} if where == "input" else None)
    flujo = Flujo(body if where == "input" else Step.map_over("each", body, items=[{"n": 0}]))
    for _ in range(2):
        assert (await flujo.run_async()).success
    assert seen == [{"n": 0}, {"n": 0}]


@pytest.mark.trio
async def test_in_a_chain_the_output_is_handed_on_as_it_is(autojump_clock: Any) -> None:
    """Nobody reads it again, so nobody pays for a copy."""
    given: list[Any] = []

    async def keep(data: Any) -> Any:
        given.append(data)
        return data

    result = await Flujo(Step("make", make) >> Step("a", keep) >> Step("b", keep)).run_async(1)
    assert given[0] is given[1] is result.output


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["retry", "branches"])
async def test_what_cannot_be_copied_is_shared(autojump_clock: Any, kind: str) -> None:
    """A lock is there to be shared: every reader gets the same."""
    given: list[Any] = []

    async def take(data: Any) -> None:
        given.append(data)
        if kind == "retry" and len(given) < 2:
            raise ValueError("once more")

    step: Any = Step("take", take, max_retries=1, backoff=Backoff.none())
    if kind == "branches":
        step = Step.parallel("take", {"a": step, "b": Step("b", take)})
    assert (await Flujo(step).run_async(lock := threading.Lock())).success
    assert all(each is lock for each in given)


@pytest.mark.trio
@pytest.mark.parametrize("kind", ["select", "until", "message"])
async def test_what_decides_by_the_data_does_not_change_it(autojump_clock: Any, kind: str) -> None:
    """Whoever works on the data afterwards gets it as it was."""

    def look(data: Any, context: Any) -> Any:
        data["n"] = "looked at"
        return {"select": "x", "until": True, "message": "?"}[kind]

    seen: list[Any] = []
    leaf = Step("note", lambda data: seen.append(dict(data)) or data)
    step: Any = {
        "select": lambda: Step.branch_on("s", look, {"x": leaf}),
        "until": lambda: Step.loop_until("s", leaf, look),
        "message": lambda: Step.human_in_the_loop("s", look, fallback=leaf, validators=lambda answer: False),
    }[kind]()
    flujo = Flujo(step)
    result = await flujo.run_async({"n": 0})
    if kind == "message":
        result = await flujo.resume_async(result.state_token, "no")
    assert (result.output, seen) == ({"n": 0}, [{"n": 0}])


@pytest.mark.trio
async def test_a_hook_can_look_at_the_context_but_not_change_it(autojump_clock: Any) -> None:
    """Neither before the run nor before a step, and no hook sees what another did."""
    seen: list[int] = []

    def spoil(payload: PreRun | PreStep) -> None:
        seen.append(payload.context.n)
        payload.context.n = 77

    async def read(data: Any, *, context: Notes) -> int:
        return context.n

    flujo = Flujo(Step("read", read), context_model=Notes, hooks=[spoil, spoil])
    assert (await flujo.run_async(1)).output == 0
    assert seen == [0, 0, 0, 0]


@pytest.mark.trio
async def test_a_hook_can_look_at_data_but_not_change_it(autojump_clock: Any) -> None:
    """Inputs, outputs of steps and of the run: whoever comes after the hook gets them as they were."""
    shown: list[Any] = []

    def spoil(payload: Any) -> None:
        outcome, result = getattr(payload, "outcome", None), getattr(payload, "result", None)
        data = payload.input if hasattr(payload, "input") else (result or outcome.step_result).output
        shown.append((payload.kind, dict(data)))
        data["n"] = "spoilt"
        if result is not None:
            result.final_context.spoilt = True

    chain = Step("a", lambda data: {"n": data["n"] + 1}) >> Step("b", lambda data: {"n": data["n"] + 1})
    result = await Flujo(chain, hooks=[spoil, spoil]).run_async({"n": 0})
    assert result.output == {"n": 2}
    assert [step.output for step in result.step_history] == [{"n": 1}, {"n": 2}]
    assert not hasattr(result.final_context, "spoilt")
    assert all(isinstance(data["n"], int) for _, data in shown)


def test_a_misspelt_key_of_the_initial_context_is_an_error() -> None:
    """Pydantic would ignore it without a word."""
    with pytest.raises(DeclarationError, match=r"context_model Notes: it has no field 'loog'; did you mean 'log'\?"):
        Flujo(Step("a", make), context_model=Notes, initial_context_data={"loog": ["x"]})


class Aliased(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    log: list[str] = Field(default=[], alias="Log")
    level: int = Field(default=0, validation_alias=AliasChoices("lvl", AliasPath("levels", 0)))


class Renaming(BaseModel):
    log: list[str] = []

    @model_validator(mode="before")
    @classmethod
    def _old_name(cls, data: dict[str, Any]) -> dict[str, Any]:
        return {"log": data["journal"]}


@pytest.mark.parametrize("data", [{"Log": ["x"]}, {"log": ["x"], "lvl": 1}, {"log": ["x"], "levels": [1]}])
def test_a_key_is_known_by_every_name_the_model_reads(data: dict[str, Any]) -> None:
    """Aliases are names too."""
    assert Flujo(Step("a", make), context_model=Aliased, initial_context_data=data).run().final_context.log == ["x"]


def test_a_model_that_reads_the_data_itself_is_given_it() -> None:
    """What its validator makes of other keys is its own business."""
    flujo = Flujo(Step("a", make), context_model=Renaming, initial_context_data={"journal": ["x"]})
    assert flujo.run().final_context.log == ["x"]
