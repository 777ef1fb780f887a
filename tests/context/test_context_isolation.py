"""Copies of contexts, and outputs that update them, for every kind of context."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any, ClassVar

import attrs
import pydantic
import pytest
from context_models import KINDS

from flujo_actors import Backoff, Context, Flujo, Step
from flujo_actors._runtime.context.copies import isolated, make_context, values_of
from flujo_actors._runtime.context.merge import updated
from flujo_actors.errors import ContextError, DeclarationError

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@every_kind
def test_a_copy_shares_nothing_with_the_original(kind: Any) -> None:
    """Whatever is changed in a copy, at any depth, stays in the copy."""
    original = kind(notes=["a"], table={"k": [1]})
    copy = isolated(original)
    assert copy == original
    copy.notes.append("b")
    copy.table["k"].append(2)
    assert (original.notes, original.table) == (["a"], {"k": [1]})


@every_kind
def test_a_failed_attempt_leaves_no_trace(kind: Any) -> None:
    """What an attempt changed is dropped with it; the attempt after it starts afresh."""
    tries: list[int] = []

    async def second_time(data: Any, *, context: Any) -> str:
        context.notes.append("tried")
        tries.append(len(context.notes))
        if len(tries) == 1:
            raise ValueError("not yet")
        return "ok"

    result = Flujo(Step("s", second_time, max_retries=1, backoff=Backoff.none()), context_model=kind).run()
    assert (result.output, tries, result.final_context.notes) == ("ok", [1, 1], ["tried"])


@every_kind
def test_runs_do_not_share_a_context(kind: Any) -> None:
    """Every run begins with the declared data, whatever the run before did to it."""

    async def note(data: Any, *, context: Any) -> int:
        context.notes.append("x")
        return len(context.notes)

    flujo = Flujo(Step("s", note), context_model=kind, initial_context_data={"notes": ["first"]})
    assert [flujo.run().output for _ in range(3)] == [2, 2, 2]


class Uncopyable:
    def __deepcopy__(self, memo: Any) -> Any:
        raise RuntimeError("one of a kind")


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Worse:
    def __deepcopy__(self, memo: Any) -> Any:
        raise Unspeakable


@pytest.mark.parametrize("value", [threading.Lock(), Uncopyable(), Worse(), (each for each in ())])
def test_what_cannot_be_copied_is_named(value: Any) -> None:
    """The error names the key and says where such things belong."""
    with pytest.raises(ContextError, match=r"key 'client' holds a value that refuses .* keep such things in resources"):
        isolated(Context(fine=1, client=value))


def test_a_context_that_cannot_be_copied_fails_the_step() -> None:
    """In a run it is the failure of the step that would have got the copy."""

    async def broken(data: Any, *, context: Any) -> Any:
        context.client = Uncopyable()

    async def never(data: Any, *, context: Any) -> Any:
        raise AssertionError

    result = Flujo(Step("a", broken) >> Step("b", never)).run()
    assert result.status == "failed"
    assert "key 'client'" in (result.feedback or "")


# --- updates ------------------------------------------------------------------------------------------------


@every_kind
def test_an_output_updates_the_context(kind: Any) -> None:
    """A dict, or any model with these fields, sets them; the original is not touched."""
    original = kind(number=1)
    for output in ({"number": 2}, Context(number=2), _Number(2)):
        changed = updated(original, output, step_name="s")
        assert type(changed) is kind
        assert (changed.number, changed.notes, original.number) == (2, [], 1)


@attrs.frozen
class _Number:
    number: int


@every_kind
def test_a_step_that_updates_the_context_does_so_in_a_run(kind: Any) -> None:
    """`updates_context=True` merges a dict output, and the next step sees it."""

    async def seven(data: Any) -> dict[str, int]:
        return {"number": 7}

    async def read(data: Any, *, context: Any) -> Any:
        return context.number

    result = Flujo(Step("a", seven, updates_context=True) >> Step("b", read), context_model=kind).run()
    assert (result.feedback, result.output, result.final_context.number) == (None, 7, 7)


@pytest.mark.parametrize("output", ["text", 5, None, [("number", 1)]])
def test_an_output_that_is_no_mapping_cannot_update_the_context(output: Any) -> None:
    """The error names the step and what it returned."""
    with pytest.raises(ContextError, match="step 's' updates the context, so its output must be a dict or a model"):
        updated(Context(), output, step_name="s")


@pytest.mark.parametrize("kind", KINDS[:-1], ids=lambda kind: kind.__name__)
def test_a_key_the_model_does_not_have_is_named(kind: Any) -> None:
    """The error names the step, the key, the model and the keys there are."""
    with pytest.raises(ContextError, match=f"'s' has the key 'nmber', which {kind.__name__} does not have .number, "):
        updated(kind(), {"nmber": 1}, step_name="s")


@pytest.mark.parametrize("kind", KINDS[:2], ids=lambda kind: kind.__name__)
def test_a_value_the_model_refuses_is_named(kind: Any) -> None:
    """Pydantic contexts validate and convert what outputs set."""
    with pytest.raises(ContextError, match=r"the output of step 's' cannot be merged into (?s:.*)number"):
        updated(kind(), {"number": "many"}, step_name="s")
    assert updated(kind(), {"number": "5"}, step_name="s").number == 5


def test_the_free_form_context_takes_any_name() -> None:
    """Keys need not exist before, and may have any name, also those of its own parameters and methods."""
    context = updated(Context(), {"self": 1, "values": 2, "get": 3, "new": 4}, step_name="s")
    assert values_of(context) == {"self": 1, "values": 2, "get": 3, "new": 4}
    assert values_of(isolated(context)) == values_of(context)
    with pytest.raises(ContextError, match="cannot be merged into Context"):
        updated(Context(), {5: 1}, step_name="s")


def test_an_update_error_fails_the_step_with_its_output() -> None:
    """What the step returned is not lost with the update."""

    async def wrong(data: Any) -> str:
        return "text"

    result = Flujo(Step("s", wrong, updates_context=True)).run()
    assert result.status == "failed"
    assert result.step_history[0].output == "text"


# --- details of models --------------------------------------------------------------------------------------


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True)

    number: int = pydantic.Field(default=0, alias="Number")
    _private: list[int] = pydantic.PrivateAttr(default_factory=list)


def test_aliases_and_private_attributes_of_a_frozen_pydantic_model_survive() -> None:
    """Keys are field names, whatever alias the model reads."""
    context = Aliased(Number=1)
    context._private.append(5)
    changed = updated(isolated(context), {"number": 2}, step_name="s")
    assert (changed.number, changed._private) == (2, [5])


class Span(pydantic.BaseModel):
    start: int = 0
    end: int = 1

    @pydantic.model_validator(mode="after")
    def _in_order(self) -> Any:
        if self.start >= self.end:
            raise ValueError("start must be before end")
        return self


def test_a_rule_over_two_fields_sees_both_new_values() -> None:
    """Neither order of setting them would pass one by one."""
    assert updated(Span(), {"start": 5, "end": 6}, step_name="s") == Span(start=5, end=6)
    with pytest.raises(ContextError, match="start must be before end"):
        updated(Span(), {"start": 5}, step_name="s")


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")


def test_an_open_pydantic_model_takes_new_keys() -> None:
    """`extra="allow"` makes a model as free as the free-form context."""
    assert values_of(updated(Open(a=1), {"b": 2}, step_name="s")) == {"a": 1, "b": 2}


@attrs.define
class WithPrivate:
    _secret: int = 0
    count: int = attrs.field(init=False, default=0)
    doubled: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.doubled = self._secret * 2


@dataclasses.dataclass
class WithOwn:
    number: int = 0
    count: int = dataclasses.field(init=False, default=0)
    unset: int = dataclasses.field(init=False)


def test_private_attrs_attributes_can_be_set() -> None:
    """The key is the attribute's name, with its underscore."""
    assert updated(WithPrivate(), {"_secret": 3}, step_name="s")._secret == 3


def test_fields_outside_the_constructor_are_kept_and_can_be_set() -> None:
    """State in `init=False` fields survives an update of others; what the class derives is derived anew."""
    context, plain = WithPrivate(), WithOwn()
    context.count, plain.count = 5, 5
    changed = updated(context, {"_secret": 3}, step_name="s")
    assert (changed.count, changed.doubled) == (5, 6)
    assert updated(context, {"count": 8}, step_name="s").count == 8
    assert updated(plain, {"number": 1}, step_name="s").count == 5
    assert updated(plain, {"count": 8}, step_name="s").count == 8


# --- declaring contexts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", [dict, "text", object, 5])
def test_a_context_model_is_a_model(model: Any) -> None:
    """Anything else is refused when the pipeline is made."""
    with pytest.raises(DeclarationError, match="context_model must be a pydantic model, an attrs class or a dataclass"):
        Flujo(Step("s", len), context_model=model)


@pytest.mark.parametrize("data", [{5: 1}, 5, "text"])
@pytest.mark.parametrize("kind", [*KINDS[:-1], None], ids=str)
def test_initial_data_that_is_no_dict_of_names_is_refused(kind: Any, data: Any) -> None:
    """Wrong initial data fails when the pipeline is made, by the model's name."""
    with pytest.raises(DeclarationError, match="initial_context_data does not fit context_model"):
        make_context(kind, data)


@pytest.mark.parametrize(
    ("kind", "data"), [(KINDS[0], {"number": "many"}), *[(kind, {"nmber": 1}) for kind in KINDS[2:6]]]
)
def test_initial_data_that_does_not_fit_the_model_is_refused(kind: Any, data: Any) -> None:
    """The model's own refusal is part of the message."""
    with pytest.raises(DeclarationError, match=f"does not fit context_model {kind.__name__}: (?s:.*)n"):
        Flujo(Step("s", len), context_model=kind, initial_context_data=data)


def test_the_free_form_context_behaves_like_an_object_and_says_what_it_has() -> None:
    """Attributes, membership, equality, and an error that helps."""
    context = Context(a=1)
    context.b = 2
    assert (context.b, "a" in context, len(context), list(context)) == (2, True, 2, ["a", "b"])
    assert (context.get("c", 5), context == Context(a=1, b=2)) == (5, True)
    with pytest.raises(AttributeError, match=r"the context has no 'c'; it has \['a', 'b'\]"):
        context.c
    with pytest.raises(TypeError, match="unhashable"):
        hash(context)


class Logged(Context):
    log: list[int] = []
    steps: int = 0
    LEVELS: ClassVar[list[str]] = ["info"]


class Tagged(Logged):
    tags = {"new"}


def test_defaults_of_a_context_class_are_not_shared_between_runs() -> None:
    """Each run begins with copies of them, and they are values of the context like any other."""

    def note(number: int, *, context: Logged) -> list[int]:
        context.log.append(number)
        return context.log

    flujo = Flujo(Step("note", note), context_model=Logged)
    assert [flujo.run(number).output for number in (1, 2)] == [[1], [2]]
    assert (Logged.log, vars(Tagged(steps=4))) == ([], {"log": [], "steps": 4, "tags": {"new"}})
    assert Tagged().tags is not Tagged.tags
    assert Tagged.LEVELS is Logged.LEVELS
