"""Errors that say what to do: the slips that everybody makes once."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
from scripted import same

from flujo_actors import DeclarationError, Flujo, PreRun, RunClient, Step, StoreError


def test_a_model_name_as_agent_is_told_what_makes_an_agent_of_it() -> None:
    """A step takes agents; `make_agent_async` makes one from a name."""
    with pytest.raises(DeclarationError, match=r"a str: .*make_agent_async\('openai:gpt-4o'\)"):
        Step("ask", "openai:gpt-4o")


class Plain:
    """Not something that anybody could validate against."""


@pytest.mark.parametrize("schema", [42, "City", Plain, Plain(), object()])
def test_what_is_no_schema_is_told_in_a_sentence_what_one_is(schema: Any) -> None:
    """For outputs and for answers, and not in the words of the library that is asked to read it."""
    for make in (
        lambda: Step("s", same, processing={"schema": schema}),
        lambda: Step.human_in_the_loop("s", "?", input_schema=schema),
    ):
        with pytest.raises(
            DeclarationError, match=r"schema.* not a JSON Schema \(a dict\), a pydantic model"
        ) as refused:
            make()
        assert "\n" not in str(refused.value)
        assert "arbitrary_types_allowed" not in str(refused.value)


# --- hooks --------------------------------------------------------------------------------------------------


class TwoArguments:
    def __call__(self, payload: PreRun, other: Any) -> None: ...


@pytest.mark.parametrize(
    "hook",
    [
        lambda: None,
        lambda payload, other: None,
        lambda payload, *, other: None,
        lambda *, payload: None,
        TwoArguments(),
        functools.partial(lambda payload: None, "bound"),
    ],
)
def test_a_hook_of_another_arity_is_refused_when_the_flujo_is_made(hook: Any) -> None:
    """Not in four tracebacks of a run that completes without it."""
    with pytest.raises(DeclarationError, match=r"hook '.*' is called with one argument, the payload, but takes"):
        Flujo(Step("s", same), hooks=hook)


@pytest.mark.parametrize(
    "hook",
    [
        lambda payload: None,
        lambda *payloads: None,
        lambda payload, other=None, **more: None,
        functools.partial(lambda kept, payload: None, []),
        [].append,
        print,
    ],
)
def test_a_hook_that_can_be_called_with_a_payload_is_taken(hook: Any) -> None:
    """Defaults, stars, partials and what has no signature to read."""
    assert Flujo(Step("s", same), hooks=hook).run(1).success


@pytest.mark.parametrize("hooks", [None, 3, [3]])
def test_what_is_no_hook_is_refused(hooks: Any) -> None:
    """A wrong declaration fails when it is built."""
    with pytest.raises(DeclarationError, match=r"hooks (must be|holds)"):
        Flujo(Step("s", same), hooks=hooks)


# --- resources ----------------------------------------------------------------------------------------------


async def by_key(data: Any, *, resources: Any) -> Any:
    return resources["db"]


async def by_name(data: Any, resources: Any) -> Any:
    return resources.db


def in_a_thread(data: Any, *, resources: Any) -> Any:
    return resources.db


ADVICE = "asks for `resources`, and there are none: give them to `Flujo(…, resources=…)`"


@pytest.mark.parametrize("user", [by_key, by_name, in_a_thread])
@pytest.mark.parametrize("where", ["agent", "validators", "processors"])
def test_forgotten_resources_are_told(user: Any, where: str) -> None:
    """Agents, validators and processors may ask for them."""
    if where == "agent":
        step = Step("s", user)
    else:
        options: Any = {"validators": user} if where == "validators" else {"processors": {"before": user}}
        step = Step("s", same, **options)
    assert ADVICE in str(Flujo(step).run(1).feedback)


def test_other_errors_of_code_that_asks_for_resources_are_told_as_they_are() -> None:
    """With resources, or without a need for them."""

    async def fails(data: Any, *, resources: Any) -> None:
        raise KeyError("k")

    async def stumbles(data: Any, *, resources: Any) -> Any:
        return data.nothing

    assert ADVICE not in str(Flujo(Step("s", fails)).run(1).feedback)
    assert ADVICE not in str(Flujo(Step("s", stumbles), resources={"db": 1}).run(None).feedback)


# --- stores -------------------------------------------------------------------------------------------------


def test_a_store_in_a_missing_folder_says_to_create_it(tmp_path: Path) -> None:
    """From a run and from a client."""
    url = f"sqlite:///{tmp_path}/no/such/runs.db"
    with pytest.raises(StoreError, match=f"there is no folder {tmp_path}/no/such; create it first"):
        Flujo(Step("s", same), store=url).run(1)
    with pytest.raises(StoreError, match="create it first"):
        RunClient(url).list()


def test_a_folder_as_a_store_says_to_name_a_file(tmp_path: Path) -> None:
    """The other thing that SQLite cannot open."""
    with pytest.raises(StoreError, match="this is a folder; name a file in it"):
        Flujo(Step("s", same), store=f"sqlite:///{tmp_path}").run(1)
