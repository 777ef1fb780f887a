"""Contexts after parallel branches: five strategies, for every kind of context."""

from __future__ import annotations

import time
from typing import Any, get_args

import pytest
from context_models import KINDS
from hypothesis import given, settings
from hypothesis import strategies as st

from flujo_actors import Context, Flujo, Step
from flujo_actors._dsl.kinds import MergeStrategy
from flujo_actors._runtime.context.copies import isolated, values_of
from flujo_actors._runtime.context.merge import merged
from flujo_actors.errors import ContextError, MergeConflict

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def branch(base: Any, **changes: Any) -> Any:
    """A copy of the context in which a branch has set some keys."""
    copy = isolated(base)
    for key, value in changes.items():
        object.__setattr__(copy, key, value)  # also where the model is frozen
    return copy


def merge(base: Any, strategy: MergeStrategy, **branches: Any) -> Any:
    return merged(base, branches.items(), strategy=strategy, where="fan")


@every_kind
@pytest.mark.parametrize("strategy", ["context_update", "overwrite", "keep_first", "error_on_conflict"])
def test_changes_of_different_keys_are_all_kept(kind: Any, strategy: MergeStrategy) -> None:
    """Where branches do not meet, every strategy but `no_merge` keeps what each did."""
    base = kind()
    after = merge(base, strategy, x=branch(base, number=1), y=branch(base, notes=["y"]), z=isolated(base))
    assert type(after) is kind
    assert (after.number, after.notes, after.table) == (1, ["y"], {})
    assert base == kind()


@every_kind
def test_no_merge_drops_all_changes(kind: Any) -> None:
    """The context stays what it was."""
    base = kind()
    assert merge(base, "no_merge", x=branch(base, number=1)) is base


@every_kind
def test_overwrite_keeps_the_last_branch_and_keep_first_the_first(kind: Any) -> None:
    """In the order of declaration, not of finishing."""
    base = kind()
    branches = {"x": branch(base, number=1), "y": branch(base, number=2), "z": isolated(base)}
    assert merge(base, "overwrite", **branches).number == 2
    assert merge(base, "keep_first", **branches).number == 1


@every_kind
@pytest.mark.parametrize("strategy", ["context_update", "error_on_conflict"])
def test_a_conflict_names_the_key_and_both_branches(kind: Any, strategy: MergeStrategy) -> None:
    """Two values for one key are an error with everything one needs to mend it."""
    base = kind()
    with pytest.raises(
        MergeConflict, match="branches 'x' and 'z' of 'fan' both changed context key 'number'"
    ) as caught:
        merge(base, strategy, x=branch(base, number=1), y=isolated(base), z=branch(base, number=2))
    assert (caught.value.key, caught.value.first, caught.value.second) == ("number", "x", "z")


@every_kind
@pytest.mark.parametrize("strategy", ["context_update", "error_on_conflict"])
def test_equal_changes_are_a_conflict_too(kind: Any, strategy: MergeStrategy) -> None:
    """Two branches that appended the same, or counted the same, did not mean one change."""
    base = kind()
    with pytest.raises(MergeConflict, match="'notes'"):
        merge(base, strategy, x=branch(base, notes=["same"]), y=branch(base, notes=["same"]))


@every_kind
def test_only_the_strictest_strategy_keeps_branches_from_filling_one_dict(kind: Any) -> None:
    """`error_on_conflict` means the whole key, whatever is inside it."""
    base = kind()
    with pytest.raises(MergeConflict, match="'table'"):
        merge(base, "error_on_conflict", x=branch(base, table={"x": 1}), y=branch(base, table={"y": 1}))


def test_the_same_part_of_a_dict_conflicts_also_with_equal_values() -> None:
    """As for whole keys."""
    with pytest.raises(MergeConflict, match="'table'"):
        merge(Context(table={}), "context_update", x=Context(table={"a": 1}), y=Context(table={"a": 1}))


@every_kind
def test_branches_may_fill_one_dict_together(kind: Any) -> None:
    """Changes of different keys of a dict agree, removals too."""
    base = kind(table={"old": 0, "kept": 1})
    filled = branch(base, table={"old": 0, "kept": 1, "x": 1})
    cleared = branch(base, table={"kept": 1})
    assert merge(base, "context_update", x=filled, y=cleared).table == {"kept": 1, "x": 1}


def test_a_conflict_in_a_dict_names_the_two_who_disagree() -> None:
    """Not the first writer of the dict, but the first writer of the same part."""
    base = Context(table={})
    with pytest.raises(MergeConflict, match="branches 'y' and 'z' of 'fan' both changed context key 'table'"):
        merge(base, "context_update", x=Context(table={"a": 1}), y=Context(table={"b": 1}), z=Context(table={"b": 2}))


def test_a_removed_key_stays_removed() -> None:
    """Deleting is a change like any other, and conflicts like any other."""
    base = Context(a=1, b=2)
    assert merge(base, "context_update", x=Context(b=2), y=Context(a=1, b=2, c=3)) == Context(b=2, c=3)
    with pytest.raises(MergeConflict, match="'a'"):
        merge(base, "context_update", x=Context(b=2), y=Context(a=5, b=2))


def test_a_model_cannot_lose_a_key() -> None:
    """A branch that deletes an attribute of a model is told so by name."""
    base = KINDS[4](number=1)
    broken = isolated(base)
    del broken.notes
    with pytest.raises(
        ContextError, match="the branches of 'fan' removed the key 'notes', which DataclassContext must"
    ):
        merge(base, "context_update", x=broken)


# --- what counts as a change --------------------------------------------------------------------------------


class WithoutEq:
    """A plain object, as users keep them: equal only to itself."""

    def __init__(self, value: int) -> None:
        self.value = value


class Elementwise:
    """Like an array: `==` answers with one truth for each element."""

    def __init__(self, *values: int) -> None:
        self.values = values

    def __eq__(self, other: object) -> Any:
        return [a == b for a, b in zip(self.values, other.values, strict=True)]  # type: ignore[attr-defined]

    __hash__ = None  # type: ignore[assignment]


class Raising:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("incomparable")

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    "value",
    [WithoutEq(1), [WithoutEq(1)], {"k": (WithoutEq(1),)}, Elementwise(1, 2), float("nan"), [float("nan")]],
    ids=["object", "in a list", "in a dict", "array", "nan", "nan in a list"],
)
def test_a_value_that_nobody_touched_is_no_change(value: Any) -> None:
    """Copies of values without a useful `==` are still recognized as copies."""
    base = Context(value=value)
    assert merge(base, "error_on_conflict", x=isolated(base), y=isolated(base)) is base


@pytest.mark.parametrize(
    ("before", "after"), [(WithoutEq(1), WithoutEq(2)), (Elementwise(1), Elementwise(2)), (1, True)]
)
def test_a_value_that_was_touched_is_a_change(before: Any, after: Any) -> None:
    """The state decides, and the type: `True` is not `1`."""
    assert merge(Context(value=before), "context_update", x=Context(value=after)).value is after


def test_what_cannot_be_compared_counts_as_changed() -> None:
    """Then the author of the pipeline has to choose a strategy."""
    base = Context(value=Raising())
    with pytest.raises(MergeConflict, match="'value'"):
        merge(base, "context_update", x=isolated(base), y=isolated(base))
    assert merge(base, "keep_first", x=isolated(base), y=isolated(base)) is not base


values = st.integers(0, 3) | st.dictionaries(st.sampled_from("ab"), st.integers(0, 2), max_size=2)
contexts = st.dictionaries(st.sampled_from(["p", "q", "r"]), values, max_size=3).map(lambda items: Context(**items))


@settings(max_examples=150, deadline=None)
@given(contexts, st.lists(contexts, max_size=4), st.sampled_from(get_args(MergeStrategy)))
def test_every_value_after_a_merge_comes_from_somewhere(
    base: Any, branches: list[Any], strategy: MergeStrategy
) -> None:
    """A merge succeeds or conflicts; untouched keys stay, and one branch alone is taken as it is."""
    before = values_of(base)
    try:
        after = values_of(
            merged(base, [(str(n), each) for n, each in enumerate(branches)], strategy=strategy, where="f")
        )
    except MergeConflict as conflict:
        assert strategy in ("context_update", "error_on_conflict")
        assert conflict.first != conflict.second  # noqa: PT017
        return
    assert values_of(base) == before
    if strategy == "no_merge" or not branches:
        assert after == before
    elif len(branches) == 1:
        assert after == values_of(branches[0])
    for key, value in before.items():
        if all(values_of(each).get(key) == value for each in branches):
            assert after[key] == value


def test_merging_does_not_grow_with_the_square_of_the_branches() -> None:
    """Ten thousand branches that each add their part to one dict are merged in one pass."""
    base = Context(results={})
    branches = [(str(number), Context(results={number: number})) for number in range(10_000)]
    begun = time.perf_counter()
    after = merged(base, branches, strategy="context_update", where="fan")
    assert len(after.results) == 10_000
    assert time.perf_counter() - begun < 60


# --- in a run -----------------------------------------------------------------------------------------------


def setting(key: str, value: Any) -> Any:
    async def set_it(data: Any, *, context: Any) -> Any:
        setattr(context, key, value)

    return set_it


def fan(merge: MergeStrategy, **branches: tuple[str, Any]) -> Any:
    steps = {name: Step(name, setting(*what)) for name, what in branches.items()}
    return Flujo(Step.parallel("fan", steps, merge=merge)).run()


def test_parallel_branches_merge_in_a_run() -> None:
    """The declared strategy decides what the run's context becomes."""
    assert values_of(fan("context_update", x=("a", 1), y=("b", 2)).final_context) == {"a": 1, "b": 2}
    assert values_of(fan("overwrite", x=("a", 1), y=("a", 2)).final_context) == {"a": 2}
    assert values_of(fan("keep_first", x=("a", 1), y=("a", 2)).final_context) == {"a": 1}
    assert values_of(fan("no_merge", x=("a", 1), y=("a", 2)).final_context) == {}


@pytest.mark.parametrize(("strategy", "second"), [("context_update", 2), ("error_on_conflict", 1)])
def test_a_conflict_fails_the_parallel_step(strategy: MergeStrategy, second: int) -> None:
    """The failure names the key and both branches, and the context stays what it was."""
    result = fan(strategy, x=("a", 1), y=("a", second))
    assert result.status == "failed"
    assert "branches 'x' and 'y' of 'fan' both changed context key 'a'" in (result.feedback or "")
    assert not result.final_context
