"""What makes a pipeline the same pipeline: its steps, their order, prompts, models and tools.

A fingerprint says a few facts of every step, so that a difference can be named. What a step does is known by its
function's name, its code is not compared; what decides between steps counts with its text (`expressions`). Texts that
may be long or secret (prompts, schemas) are kept as hashes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .._core.paths import ROOT, StepPath
from .._dsl.call_plan import is_model_agent
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step import Step
from .._dsl.tree import walk_places
from .expressions import digest, expression, named, named_as_it_ran

Facts = Mapping[str, object]
"""What is known of one step: its kind, and what else must stay the same."""

FORM = 2
"""The form of the fingerprints that this code writes."""


@attrs.frozen
class Fingerprint:
    """The facts of every step by path, in the order of the declaration, and a name that the pipeline's runs share."""

    steps: Mapping[StepPath, Facts]
    name: str

    @classmethod
    def of(cls, pipeline: Pipeline, *, form: int = FORM) -> Fingerprint:
        """The fingerprint of a declaration, with the facts that were written in that form."""
        facts = _facts if form == FORM else _facts_of_form_1
        steps = {path: facts(step) for path, step in walk_places(pipeline) if path != ROOT}
        return cls(steps, pipeline.title)

    def digest(self) -> str:
        """A short name of this version of the pipeline."""
        text = json.dumps(self.data(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def data(self) -> dict[str, object]:
        """The fingerprint as JSON data; facts that several steps share are told once, and counted from 0."""
        facts: list[Facts] = []
        places: dict[str, int] = {}
        steps = [[path, _place_of(each, facts, places)] for path, each in self.steps.items()]
        return {"form": FORM, "facts": facts, "steps": steps}


def _place_of(each: Facts, facts: list[Facts], places: dict[str, int]) -> int:
    place = places.setdefault(repr(each), len(facts))
    if place == len(facts):
        facts.append(dict(each))
    return place


def read_fingerprint(data: Any) -> dict[StepPath, Facts]:
    """The steps of a stored fingerprint; `ValueError` if it is none."""
    try:
        # Records of version 1 repeated the facts for every step.
        pairs = data if isinstance(data, list) else [(path, data["facts"][place]) for path, place in data["steps"]]
    except (LookupError, TypeError) as error:
        raise ValueError(f"a fingerprint has facts and steps ({error!r})") from error
    steps = {StepPath(path): facts for path, facts in pairs}
    if not all(isinstance(path, str) and _are_facts(facts) for path, facts in steps.items()):
        raise ValueError("a fingerprint is a list of paths and facts, and each step has a kind")
    return steps


def form_of(data: object) -> int:
    """Which facts a stored fingerprint has: the first form has no texts of expressions."""
    return FORM if isinstance(data, dict) and "form" in data else 1


def _are_facts(facts: object) -> bool:
    return isinstance(facts, dict) and isinstance(facts.get("kind"), str)


def _facts(step: AnyStep) -> Facts:
    facts = _known_facts(step)
    if not isinstance(step, Pipeline):
        facts.update((name, expression(value)) for name, value in step.deciding() if value is not None)
    return facts


def _facts_of_form_1(step: AnyStep) -> Facts:
    facts = _known_facts(step)
    if isinstance(step, HumanInTheLoop):
        asked = step.message if isinstance(step.message, str) else named_as_it_ran(step.message)
        facts["message"] = digest(asked)
    if "prompt" in facts:
        assert isinstance(step, Step)
        facts["prompt"] = digest(_prompts(_bare(step.agent), named_as_it_ran))
    return facts


def _known_facts(step: AnyStep) -> dict[str, object]:
    facts: dict[str, object] = {"kind": step.kind}
    if isinstance(step, Step):
        facts.update(_agent_facts(step.agent))
    elif not isinstance(step, Pipeline):
        facts.update((name, _lasting_fact(value)) for name, value in step.lasting())
    return facts


def _lasting_fact(value: object) -> object:
    """An option as it is compared: reducers are known by their names."""
    if not isinstance(value, Mapping):
        return value
    return {key: getattr(reducer, "name", None) or named(reducer) for key, reducer in value.items()}


def _agent_facts(agent: Any) -> Facts:
    if not is_model_agent(agent):
        return {"agent": named(agent)}
    agent = _bare(agent)
    model = getattr(agent, "model", None)
    return {
        "agent": f"agent {agent.name or ''}".strip(),
        "model": model if isinstance(model, str) else getattr(model, "model_name", None),
        "prompt": digest(_prompts(agent, named)),
        "tools": _tools(agent),
    }


def _bare(agent: object) -> object:
    """The agent without what is wrapped around it."""
    while hasattr(agent, "wrapped"):
        agent = agent.wrapped
    return agent


def _prompts(agent: object, named: Callable[..., str]) -> list[str]:
    """What an agent is told besides its input; what a function makes of it is known by the function's name."""
    told = (
        *getattr(agent, "_system_prompts", ()),
        *getattr(agent, "_system_prompt_functions", ()),
        *getattr(agent, "_instructions", ()),
    )
    texts = [getattr(each, "instruction", getattr(each, "function", each)) for each in told]
    return [text if isinstance(text, str) else named(text) for text in texts]


def _tools(agent: Any) -> dict[str, str]:
    return {
        name: digest([getattr(tool, "description", None), _schema_of(tool)])
        for toolset in agent.toolsets
        for name, tool in sorted(getattr(toolset, "tools", {}).items())
    }


def _schema_of(tool: object) -> object:
    return getattr(getattr(tool, "function_schema", None), "json_schema", None)
