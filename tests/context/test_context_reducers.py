"""Fields that say how to combine what several branches made of them."""

from __future__ import annotations

import dataclasses
import operator
from typing import Annotated, Any

import attrs
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors import Add, Append, DeclarationError, Flujo, Merge, Pipeline, Step


def longest(base: str, one: str, other: str) -> str:
    """A reducer of a user's own."""
    return max(one, other, key=len)


class Pydantic(pydantic.BaseModel):
    total: Annotated[int, Add] = 0
    notes: Annotated[list[str], Append] = []
    table: Annotated[dict[str, Any], Merge] = {}
    title: Annotated[str, longest] = ""
    plain: int = 0


@attrs.define
class Attrs:
    total: Annotated[int, Add] = 0
    notes: Annotated[list[str], Append] = attrs.field(factory=list)
    table: Annotated[dict[str, Any], Merge] = attrs.field(factory=dict)
    title: Annotated[str, longest] = ""
    plain: int = 0


@dataclasses.dataclass
class Dataclass:
    total: Annotated[int, Add] = 0
    notes: Annotated[list[str], Append] = dataclasses.field(default_factory=list)
    table: Annotated[dict[str, Any], Merge] = dataclasses.field(default_factory=dict)
    title: Annotated[str, longest] = ""
    plain: int = 0


every_model = pytest.mark.parametrize("model", [Pydantic, Attrs, Dataclass], ids=lambda model: model.__name__)


async def contribute(item: int, *, context: Any) -> None:
    context.total += item
    context.notes.append(f"item {item}")
    context.table[f"k{item}"] = item
    context.title = "x" * item


@every_model
def test_items_of_a_map_combine_as_their_fields_say(model: Any) -> None:
    """Sums, lists and dicts lose nothing, in the order of the items, however many change them."""
    start = {"total": 100, "notes": ["first"], "table": {"k": 0}}
    flujo = Flujo(
        Step.map_over("each", Step("one", contribute), items=[1, 2, 2]),
        context_model=model,
        initial_context_data=start,
    )
    after = flujo.run().final_context
    assert (after.total, after.notes) == (105, ["first", "item 1", "item 2", "item 2"])
    assert (after.table, after.title) == ({"k": 0, "k1": 1, "k2": 2}, "xx")


@every_model
def test_fields_without_a_reducer_still_conflict(model: Any) -> None:
    """The error names the key, both branches and the three ways out."""

    async def count(data: Any, *, context: Any) -> None:
        context.plain += 1

    step = Step.parallel("both", {"a": Step("a", count), "b": Step("b", count)})
    feedback = Flujo(step, context_model=model).run().feedback or ""
    assert "branches 'a' and 'b' of 'both' both changed context key 'plain'" in feedback
    for way in ("Annotated[…, Add]", "merge={'plain': Add}", '"overwrite"', "combine the outputs"):
        assert way in feedback


@pytest.mark.parametrize("make", ["parallel", "map"])
def test_a_step_says_how_to_combine_keys_of_a_free_form_context(make: str) -> None:
    """`merge` takes reducers by key; what it does not name is merged as always."""

    async def count(data: Any, *, context: Any) -> None:
        context.n = context.get("n", 0) + 1

    body, merge = Step("count", count), {"n": Add}
    if make == "parallel":
        step: Any = Step.parallel("fan", {"a": body, "b": Step("b", count), "c": Step("c", count)}, merge=merge)
    else:
        step = Step.map_over("fan", body, items=[1, 2, 3], merge=merge)
    assert Flujo(step).run().final_context.n == 3
    assert Flujo(step, initial_context_data={"n": 10}).run().final_context.n == 13


def test_a_reducer_of_the_step_goes_before_that_of_the_field() -> None:
    """The step knows better what it is about to do."""
    step = Step.map_over("each", Step("one", contribute), items=[1, 2], merge={"title": lambda base, one, other: one})
    assert Flujo(step, context_model=Pydantic).run().final_context.title == "x"


def test_a_strategy_that_chooses_goes_before_reducers() -> None:
    """`overwrite` means overwrite."""
    step = Step.map_over("each", Step("one", contribute), items=[1, 2], merge="overwrite")
    assert Flujo(step, context_model=Pydantic).run().final_context.total == 2


def test_nested_branches_are_combined_level_by_level() -> None:
    """What an inner stage came to is one change for the outer one."""
    inner = Step.map_over("inner", Step("one", contribute), items=[1, 2])
    outer = Step.parallel("outer", {"a": Pipeline([inner]), "b": Step.map_over("inner", Step("one", contribute))})
    result = Flujo(outer, context_model=Attrs, initial_context_data={"total": 1}).run([10, 20])
    assert result.final_context.total == 34
    assert result.final_context.notes == ["item 1", "item 2", "item 10", "item 20"]


def test_a_reducer_that_raises_fails_the_step_by_name() -> None:
    """Whatever it raises; the outputs of the branches are not lost."""

    def broken(base: Any, one: Any, other: Any) -> Any:
        raise LookupError("no idea")

    step = Step.map_over("each", Step("one", contribute), items=[1, 2], merge={"total": broken})
    result = Flujo(step, context_model=Pydantic).run()
    assert result.status == "failed"
    assert "context key 'total': LookupError: no idea" in (result.feedback or "")
    assert result.step_history[0].output == [None, None]


def test_appending_refuses_a_list_whose_beginning_was_changed() -> None:
    """Then it is not known what was appended."""

    async def replace(item: str, *, context: Any) -> None:
        context.notes = [item]

    step = Step.map_over("each", Step("one", replace), items=["a", "b"])
    result = Flujo(step, context_model=Pydantic, initial_context_data={"notes": ["first"]}).run()
    assert "a branch changed the previous items" in (result.feedback or "")


@pytest.mark.parametrize("reducer", [operator.add, len])
def test_a_function_that_is_no_reducer_is_refused_when_it_is_declared(reducer: Any) -> None:
    """On a field of the context, and on a step."""

    class Wrong(pydantic.BaseModel):
        n: Annotated[int, reducer] = 0

    with pytest.raises(
        DeclarationError, match=r"field 'n' of context_model Wrong .* does not take \(base, one, other\)"
    ):
        Flujo(Step("s", contribute), context_model=Wrong)
    with pytest.raises(DeclarationError, match=r"step 'fan': merge\['n'\] must be Add, Append, Merge or a function"):
        Step.map_over("fan", Step("s", contribute), merge={"n": reducer})


def test_other_metadata_of_a_field_is_none_of_our_business() -> None:
    """Constraints, validators and descriptions stay what they are."""

    class Strict(pydantic.BaseModel):
        n: Annotated[int, pydantic.Field(ge=0), pydantic.AfterValidator(abs), "a note", Add] = 0

    async def count(item: int, *, context: Any) -> None:
        context.n += item

    flujo = Flujo(Step.map_over("each", Step("count", count)), context_model=Strict)
    assert flujo.run([1, 1, 1]).final_context.n == 3


words = st.lists(st.integers(), max_size=3)


@given(words, st.lists(words, min_size=1, max_size=5))
def test_adding_and_appending_lose_nothing(base: list[int], branches: list[list[int]]) -> None:
    """Whatever each branch adds to what was there is in the end there once."""
    total, listed = sum(base), base
    for index, added in enumerate(branches):
        one, other = sum(base) + sum(added), base + added
        total = one if index == 0 else Add(sum(base), total, one)
        listed = other if index == 0 else Append(base, listed, other)
    assert total == sum(base) + sum(map(sum, branches))
    assert listed == base + [each for added in branches for each in added]


tables = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2) | st.dictionaries(st.sampled_from("xy"), st.none()))


@given(tables, tables, tables)
def test_merged_dicts_hold_what_either_changed(base: Any, one: Any, other: Any) -> None:
    """A key that only one of them touched is as that one left it, also if that is gone."""
    merged = Merge(base, one, other)
    for key in {*base, *one, *other}:
        changed = [each for each in (one, other) if each.get(key) != base.get(key)]
        if len(changed) < 2:
            expected = changed[0] if changed else base
            assert merged.get(key) == expected.get(key)


def test_a_reducer_cannot_change_what_it_combines_from() -> None:
    """The context before the branches stays as it was, if the step fails after all."""

    def spoil(base: list[str], one: list[str], other: list[str]) -> list[str]:
        base.append("spoilt")
        return one + other

    async def note(data: int, *, context: Any) -> None:
        context.notes.append(str(data))

    step = Step.parallel("p", {"a": note, "b": note}, merge={"notes": spoil}, validators=lambda output: "no")
    flujo = Flujo(step, initial_context_data={"notes": []})
    assert [flujo.run(1).final_context.notes for _ in range(2)] == [[], []]
