"""Typical mistakes of new users: each message names the thing, the place and the remedy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pydantic
import pytest

from flujo_actors import Flujo, LoopAlreadyRunning, Pipeline, RunClient, Step, UsageLimits, load_blueprint
from flujo_actors.stores import MemoryStore


class Totals(pydantic.BaseModel):
    """A context."""

    total: int = 0


async def same(data: Any) -> Any:
    return data


async def misnamed(data: Any, *, contxt: Any) -> Any:
    return data


any_: Any = Step
"""Steps without their types, for declarations that a type checker refuses."""

ONE = Step("a", same)


def answered(answer: object) -> object:
    flujo = Flujo(Step.human_in_the_loop("ask", "Fine?", input_schema=bool))
    return flujo.resume(str(flujo.run(1).state_token), answer)


def failed(step: Any) -> None:
    result = Flujo(step).run("text")
    raise RuntimeError(result.feedback)


MISTAKES: dict[str, tuple[Callable[[], object], tuple[str, ...]]] = {
    "an agent that is a number": (lambda: any_("a", 3), ("step 'a'", "agent", "callable", "`run`")),
    "a misspelled option": (lambda: any_("a", same, max_retry=3), ("step 'a'", "'max_retry'", "'max_retries'")),
    "a negative number of retries": (lambda: Step("a", same, max_retries=-1), ("step 'a'", "max_retries", "-1")),
    "a step without a name": (lambda: Step("", same), ("step's name", "non-empty")),
    "two steps of one name": (
        lambda: Pipeline([ONE, Step("a", same)]),
        ("'a'", "number 2", "another name"),
    ),
    "a pipeline without steps": (lambda: Pipeline([]), ("pipeline", "at least one step")),
    "a misspelled parameter": (lambda: Step("a", misnamed), ("step 'a'", "'contxt'", "context", "default")),
    "a condition that is a value": (
        lambda: any_.loop_until("l", ONE, until=True),
        ("step 'l'", "until", "callable", "True"),
    ),
    "a branch without branches": (
        lambda: any_.branch_on("b", lambda data, context: data, branches={}),
        ("step 'b'", "branches", "at least one"),
    ),
    "a map over a text": (lambda: failed(Step.map_over("m", ONE)), ("step 'm'", "items", "'text'", "list")),
    "an unknown context key": (
        lambda: Flujo(ONE, context_model=Totals, initial_context_data={"totl": 1}).run(1),
        ("initial_context_data", "Totals", "'totl'", "'total'"),
    ),
    "a context value of another type": (
        lambda: Flujo(ONE, context_model=Totals, initial_context_data={"total": "x"}).run(1),
        ("initial_context_data", "Totals", "total", "integer"),
    ),
    "a store of another database": (
        lambda: Flujo(ONE, store="mysql://x"),
        ("'mysql://x'", "sqlite:///", "postgresql://"),
    ),
    "a store that is a path": (lambda: Flujo(ONE, store="runs.db"), ("'runs.db'", "'sqlite:///runs.db'")),
    "a misspelled setting": (lambda: Flujo(ONE, settings={"durabilty": {}}), ("'durabilty'", "'durability'")),
    "a misspelled limit": (lambda: UsageLimits(total_token_limit=3), ("'total_token_limit'", "'total_tokens_limit'")),  # type: ignore[call-arg]
    "a run id that is a number": (lambda: Flujo(ONE).run(1, run_id=7), ("run_id", "text", "7")),  # type: ignore[arg-type]
    "a token that is none": (lambda: Flujo(ONE).resume("nope", 1), ("'nope'", "`state_token`")),
    "an answer that does not fit": (lambda: answered("maybe"), ("'ask'", "input_schema", "boolean", "answer again")),
    "a submission without a store": (lambda: Flujo(ONE).submit_sync(1), ("submit", "store='sqlite:///runs.db'")),
    "an unknown run": (lambda: RunClient(MemoryStore()).get("nope"), ("'nope'", "store")),
    "an unknown state": (
        lambda: RunClient(MemoryStore()).list(state="pausd"),  # type: ignore[arg-type]
        ("'pausd'", "waiting", "queued"),
    ),
    "a blueprint that is not there": (lambda: load_blueprint(Path("no/p.yaml")), ("p.yaml", "no file")),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_typical_mistake_is_explained(mistake: str, caplog: pytest.LogCaptureFixture) -> None:
    """The message has the thing, its place and the remedy."""
    caplog.set_level(logging.CRITICAL)
    make, words = MISTAKES[mistake]
    with pytest.raises(Exception) as caught:
        make()
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_misspelled_key_of_a_blueprint_is_explained(tmp_path: Path) -> None:
    """With file, line, column and the near key."""
    (tmp_path / "p.yaml").write_text("steps:\n  - {name: a, usess: builtins.passthrough}\n")
    with pytest.raises(Exception, match=r"p\.yaml:2:15: error V-K1 step 'a' has no key `usess`: did you mean `uses`"):
        load_blueprint(tmp_path / "p.yaml")


def test_a_blocking_run_inside_a_loop_is_explained() -> None:
    """With the call to use instead."""

    async def endpoint() -> object:
        return Flujo(ONE).run(1)

    with pytest.raises(LoopAlreadyRunning, match=r"this call would block it: use `await flujo\.run_async"):
        asyncio.run(endpoint())
