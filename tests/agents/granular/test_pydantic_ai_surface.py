"""What granular steps build on in pydantic-ai, so that a new release that moves it is found here, with what to do.

`Durability` subclasses pydantic-ai's base for durable engines, and replaces what that base does to models and toolsets.
The base wraps a model in each hook it implements: one that is not replaced takes the requests away from our units, and
fails somewhere deep in pydantic-ai.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.metadata import version

import pytest
from pydantic_ai import Agent
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.durable_exec import BaseDurabilityCapability
from pydantic_ai.models.test import TestModel

from flujo_actors import _agents as agents
from flujo_actors._agents.granular.capability import Durability

REPLACED = {
    "before_model_request",
    "for_agent",
    "get_wrapper_toolset",
    "prepare_model_request",  # as from 2.66
    "wrap_model_request",
}
"""What the base does to an agent's model and toolsets."""

KEPT = {
    "before_run",  # refuses cancellation tokens
    "get_ordering",  # innermost
    "get_serialization_name",  # none
    "has_wrap_run_event_stream",  # only with a handler of its own, which we never give it
    "resolve_model_id",  # by the names in `models=`, of which we give it none
    "wrap_run",  # one tool call at a time, which we do not ask for
    "wrap_run_event_stream",
}
"""What the base does besides, and may do."""


def _public(owner: type) -> set[str]:
    return {name for name in vars(owner) if not name.startswith("_")}


def test_every_hook_of_pydantic_ais_engines_is_known_here() -> None:
    """A hook that a release adds to its base is replaced or kept on purpose, not by accident."""
    hooks = _public(BaseDurabilityCapability) & {name for kind in AbstractCapability.__mro__ for name in vars(kind)}
    unknown = hooks - REPLACED - KEPT
    assert not unknown, (
        f"pydantic-ai {version('pydantic-ai-slim')}: BaseDurabilityCapability now implements {sorted(unknown)}. Read "
        "them in pydantic_ai/durable_exec/_base.py. If they wrap the model or a toolset, override them in `Durability` "
        "(src/flujo_actors/_agents/granular/capability.py) and add them to REPLACED; otherwise add them to KEPT."
    )


def test_all_that_touches_models_and_toolsets_is_replaced() -> None:
    """Whatever release is installed, also one that has not all of the hooks."""
    missing = REPLACED - _public(Durability)
    assert not missing, f"`Durability` must override {sorted(missing)}: see the head of this file"


def _subclasses_of_pydantic_ai() -> Iterator[type]:
    for found in pkgutil.iter_modules(agents.__path__, f"{agents.__name__}."):
        for kind in vars(importlib.import_module(found.name)).values():
            if isinstance(kind, type) and kind.__module__ == found.name and _bases_in_pydantic_ai(kind):
                yield kind


def _bases_in_pydantic_ai(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if base.__module__.startswith("pydantic_ai")]


OF_PYTHON = ("__", "_abc_", "_is_protocol")


def _private(owner: type) -> set[str]:
    return {name for name in vars(owner) if name.startswith("_") and not name.startswith(OF_PYTHON)}


@pytest.mark.parametrize("kind", list(_subclasses_of_pydantic_ai()), ids=lambda kind: kind.__name__)
def test_nothing_private_to_pydantic_ai_is_overridden(kind: type) -> None:
    """A private method changes without notice, and a release may take a name that we use for ourselves."""
    taken = _private(kind) & {name for base in _bases_in_pydantic_ai(kind) for name in _private(base)}
    assert not taken, (
        f"pydantic-ai {version('pydantic-ai-slim')} has {sorted(taken)} for itself: rename ours in {kind.__module__}, "
        "or, if it was overridden on purpose, find a public hook that does the same"
    )


READ = {
    "_instructions": "_durable/fingerprint.py, to find a changed prompt",
    "_output_validators": "_agents/output_schema.py, to know whether a repaired value must be judged",
    "_override_model": "_agents/metered_model.py, to know whether the agent's own model is the one that is asked",
    "_override_root_capability": "_agents/agent_request.py, to know whether the agent's own capabilities are those of a run",  # noqa: E501
    "_system_prompt_functions": "_durable/fingerprint.py, to find a changed prompt",
    "_system_prompts": "_durable/fingerprint.py, to find a changed prompt",
}
"""What is read of an `Agent` that has no public name: by whom, and why."""


@pytest.mark.parametrize("name", READ)
def test_what_is_read_of_an_agent_is_still_there(name: str) -> None:
    """Its readers do without it, with less knowledge, so nothing else would tell that it has gone."""
    assert hasattr(Agent(TestModel()), name), (
        f"pydantic-ai {version('pydantic-ai-slim')}: an Agent has no `{name}` any more, which is read by {READ[name]}"
    )
