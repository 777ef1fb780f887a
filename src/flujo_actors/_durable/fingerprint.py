"""Pipeline fingerprint: steps, order, prompts, models and tools.

A fingerprint has a few facts of every step, so that a difference can be named. A step is identified by its function's
name, its code is not compared; values that control flow count with their text (`expressions`). Texts that may be long
or secret (prompts, schemas) are hashed.

Sections:

- Names and texts of a pipeline's references, comparable between processes.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import attrs

from .._core.step_paths import ROOT, StepPath
from .._core.type_registry import imported_as, stored_name
from .._dsl.call_plan import is_model_agent
from .._dsl.declaration_tree import walk_places
from .._dsl.kinds import HumanInTheLoop
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step_declaration import Step

# --- Names and texts of a pipeline's references -------------------------------------------------------------------
# Rules:
#
# 1. A function is identified by its qualified name. A function of `__main__` gets its module's name: a
#    run of `python app.py` equals one of `import app`.
# 2. Values that control flow (a condition, items, an input, a prompt) also count by text: texts and plain data
#    as they are, a lambda by its code, a partial by its arguments, and an object with a `text` (a template, an
#    expression of a blueprint) by that.
# 3. Code is compared only between equal versions of Python: others compile the same text to other code.
# 4. The package part of a module's name depends on how the program was started: `app.f` is `shop.app.f`.


_LAMBDA = "<lambda>"


def named(target: Any) -> str:
    """Return the qualified name of a function, class or object's class."""
    target = _nameable(target)
    return stored_name(f"{imported_as(_module_of(target))}.{target.__qualname__}")


def named_as_it_ran(target: Any) -> str:
    """Return the qualified name with `__main__` unchanged, as earlier versions wrote it."""
    target = _nameable(target)
    return stored_name(f"{_module_of(target)}.{target.__qualname__}")


def _module_of(target: object) -> str:
    """Return the defining module; methods of builtin types have none."""
    return getattr(target, "__module__", None) or "builtins"


def _nameable(target: object) -> object:
    target = getattr(target, "func", target)
    return target if hasattr(target, "__qualname__") else type(target)


def expression(value: object) -> str:
    """Return the text of a condition, items, input or prompt (rule 2)."""
    if isinstance(value, functools.partial):
        return f"{expression(value.func)} {digest([value.args, value.keywords])}"
    if not callable(value):
        return digest(value)
    text = getattr(value, "text", None)
    if isinstance(text, str):
        return f"{named(value)} {digest(text)}"
    code = getattr(value, "__code__", None)
    return f"{named(value)} {_code(code)}" if code is not None and code.co_name == _LAMBDA else named(value)


def digest(value: object) -> str:
    """Return a short hash of plain data; other values count by type."""
    try:
        text = json.dumps(value, sort_keys=True, skipkeys=True, default=named)
    except (TypeError, ValueError, RecursionError):
        text = named(value)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _code(code: CodeType) -> str:
    return f"{sys.implementation.cache_tag}:{_code_digest(code)}"


@functools.lru_cache(maxsize=4096)  # computed for every run
def _code_digest(code: CodeType) -> str:
    consts = [_const(each) for each in code.co_consts]
    parts = (code.co_code.hex(), consts, code.co_names, code.co_varnames, code.co_freevars)
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def _const(value: object) -> str:
    if isinstance(value, CodeType):
        return _code_digest(value)
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


def is_same(old: str, new: str) -> bool:
    """Return whether two names or expressions are equivalent."""
    (old_name, *old_parts), (new_name, *new_parts) = old.split(" "), new.split(" ")
    if len(old_parts) != len(new_parts) or not _is_same_name(old_name, new_name):
        return False
    return all(map(_is_same_text, old_parts, new_parts))


def _is_same_name(one: str, other: str) -> bool:
    shorter, longer = sorted((one.removeprefix("__main__."), other.removeprefix("__main__.")), key=len)
    return shorter == longer or ("." in one and "." in other and longer.endswith(f".{shorter}"))


def _is_same_text(old: str, new: str) -> bool:
    (old_tag, _, _), (new_tag, _, _) = old.rpartition(":"), new.rpartition(":")
    return old == new or old_tag != new_tag


# --- Pipeline fingerprint -----------------------------------------------------------------------------------------


Facts = Mapping[str, object]
"""Facts of one step that must stay the same, with its kind."""

FORM = 2
"""The form of the fingerprints that this code writes."""


@attrs.frozen
class Fingerprint:
    """Facts of every step by path in order, and pipeline name."""

    steps: Mapping[StepPath, Facts]
    name: str

    @classmethod
    def of(cls, pipeline: Pipeline, *, form: int = FORM) -> Fingerprint:
        """Return the fingerprint of a declaration in a stored form."""
        facts = _facts if form == FORM else _facts_of_form_1
        steps = {path: facts(step) for path, step in walk_places(pipeline) if path != ROOT}
        return cls(steps, pipeline.title)

    def digest(self) -> str:
        """Return a short name of this version of the pipeline."""
        text = json.dumps(self.data(), sort_keys=True, default=str)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def data(self) -> dict[str, object]:
        """Return the fingerprint as JSON data; shared facts are indexed from 0."""
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
    """Return the steps of a stored fingerprint; `ValueError` if it is none."""
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
    """Return a stored fingerprint's form; the first lacks expression texts."""
    return FORM if isinstance(data, dict) and "form" in data else 1


def _are_facts(facts: object) -> bool:
    return isinstance(facts, dict) and isinstance(facts.get("kind"), str)


def step_facts(step: AnyStep) -> Facts:
    """Return the facts of one step."""
    return _facts(step)


def _facts(step: AnyStep) -> Facts:
    facts = _known_facts(step)
    if not isinstance(step, Pipeline):
        facts.update((name, expression(value)) for name, value in step.deciding() if value is not None)
        if step.retry_on is not None:
            facts["retry_on"] = [each if isinstance(each, int) else expression(each) for each in step.retry_on]
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
        facts.update((name, _lasting_fact(value)) for name, value in step.resume_options())
    return facts


def _lasting_fact(value: object) -> object:
    """Return an option for comparison; reducers by their names."""
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
    """Return the agent without its wrappers."""
    while hasattr(agent, "wrapped"):
        agent = agent.wrapped
    return agent


def _prompts(agent: object, named: Callable[..., str]) -> list[str]:
    """Return an agent's instructions; functions count by name."""
    parts = (
        *getattr(agent, "_system_prompts", ()),
        *getattr(agent, "_system_prompt_functions", ()),
        *getattr(agent, "_instructions", ()),
    )
    texts = [getattr(each, "instruction", getattr(each, "function", each)) for each in parts]
    return [text if isinstance(text, str) else named(text) for text in texts]


def system_texts(step: AnyStep, stored: Facts) -> list[str]:
    """Return the fixed prompts of a step's agent, if unchanged."""
    if not isinstance(step, Step) or _facts(step).get("prompt") != stored.get("prompt") or "prompt" not in stored:
        return []
    agent = _bare(step.agent)
    prompts = (*getattr(agent, "_system_prompts", ()), *getattr(agent, "_instructions", ()))
    texts = [getattr(each, "instruction", each) for each in prompts]
    return [text for text in texts if isinstance(text, str)]


def _tools(agent: Any) -> dict[str, str]:
    return {
        name: digest([getattr(tool, "description", None), _schema_of(tool)])
        for toolset in agent.toolsets
        for name, tool in sorted(getattr(toolset, "tools", {}).items())
    }


def _schema_of(tool: object) -> object:
    return getattr(getattr(tool, "function_schema", None), "json_schema", None)
