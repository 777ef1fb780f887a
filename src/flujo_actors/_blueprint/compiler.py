"""Compiler from an error-free model to a pipeline. `make_agent` is injected.

Sections:

- Import of Python names in a valid blueprint.
- Output processors of a blueprint: template, single value, context sink.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import attrs

from .. import _agents
from .._core.policies.approval_policy import Option
from .._core.policies.rate_limits import RateLimit
from .._core.retry_decisions import Backoff, RetryRule, provider_errors
from .._core.usage import UsageLimits
from .._dsl.call_plan import is_model_agent
from .._dsl.context_sources import from_history, from_literal, from_retrieval, from_state
from .._dsl.declared_step import Declared
from .._dsl.output_options import Cache, Processing
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.step_declaration import Step
from ..errors import BlueprintError, DeclarationError
from ..structured._builtins import BUILTINS
from .lint.value_schemas import type_of
from .parser.analysis import refusal
from .parser.blueprint_model import AgentEntry, AgentModel, BlueprintModel, StepModel
from .parser.field_parser import exception_named
from .parser.field_table import fields_of
from .parser.project import Project, content_of, inside, is_allowed, is_module_allowed
from .templates.template_compiler import Evaluate, evaluator
from .templates.template_filters import TemplateError, TemplateFrame
from .templates.template_parser import parse_template
from .templates.templates import choice_of, duration_of, exit_of, input_of, instant_of, items_of, message_of

# --- Import of Python names in a valid blueprint ------------------------------------------------------------------
# Rules:
#
# 1. The text is checked before anything is imported, the object afterwards.
# 2. No module is an object of a pipeline. A function or a class must be *defined* in an allowed module, regardless of
#    its import location; an instance must be a model agent, a step, a pipeline, or of a class defined in one.
# 3. An exact entry (`shop:clerk`) allows the object of that name, defined anywhere.


class NotThere(Exception):
    """Unusable Python name; the message explains why."""


class NotAllowed(NotThere):
    """Python name that this blueprint may not use."""


def import_object(project: Project, target: str) -> Any:
    """Return the object behind `package.module:name`, if it may be used."""
    if not is_allowed(project.allow, target):
        raise NotAllowed(f"`{target}` is not allowed")
    _make_findable(project)
    found = _found(target)
    if isinstance(found, ModuleType):
        raise NotThere(f"`{target}` is a module; name something in it")
    if target not in project.allow and not _is_from_allowed(found, project.allow):
        raise NotAllowed(
            f"`{target}` is defined in {_home(found)!r}, which is not allowed; allow that, or {target!r} itself"
        )
    return found


def _make_findable(project: Project) -> None:
    """Append the project's directories to the path, shadowing no other module."""
    for directory in project.module_directories():
        path = str(Path(directory).resolve())
        if path not in sys.path:
            sys.path.append(path)


def _found(target: str) -> object:
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        raise NotThere(f"there is no module {error.name!r} for `{target}`") from error
    except AttributeError as error:
        raise NotThere(f"module {module!r} has no {name!r}") from error


def _is_from_allowed(found: Any, allow: tuple[str, ...]) -> bool:
    if is_model_agent(found) or isinstance(found, Declared | Pipeline):
        return True
    return is_module_allowed(allow, _home(found))


def _home(found: Any) -> str:
    """Return the defining module of a function, class or object."""
    while isinstance(found, functools.partial):
        found = found.func
    if inspect.ismethod(found):
        found = found.__func__
    if inspect.isroutine(found) or inspect.isclass(found):
        found = inspect.unwrap(found)
        return str(getattr(found, "__module__", None) or "")
    return str(type(found).__module__)


# --- Output processors of a blueprint -----------------------------------------------------------------------------


@attrs.frozen
class SinkTo:
    """`sink_to`: store the output under a context path, unchanged."""

    path: str

    def __call__(self, value: object, *, context: object) -> object:
        *above, last = self.path.split(".")
        holder = context
        for name in above:
            holder = _inner(holder, name)
        _put(holder, last, value)
        return value


def _inner(holder: object, name: str) -> object:
    found = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
    if found is None:
        found = {}
        _put(holder, name, found)
    return found


def _put(holder: object, name: str, value: object) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


@attrs.frozen(eq=False)
class OutputTemplate:
    """`output_template`: output of a loop, made from its last turn's output."""

    text: str
    _evaluate: Evaluate = attrs.field(repr=False)

    @classmethod
    def of(cls, text: str) -> OutputTemplate:
        """Return the template of a text."""
        parsed = parse_template(text)
        if parsed.faults:
            raise TemplateError(parsed.faults[0].message)
        return cls(text, evaluator(parsed))

    def __call__(self, value: object, *, context: object) -> object:
        return self._evaluate(TemplateFrame({"previous_step": value, "context": context}))


@attrs.frozen
class Reduce:
    """`reduce`: one value of the outputs by branch."""

    how: str

    def __call__(self, outputs: Mapping[str, object]) -> object:
        values = list(outputs.values())
        match self.how:
            case "keys":
                return list(outputs)
            case "values":
                return values
            case "first":
                return values[0]
            case "last":
                return values[-1]
            case "union":
                return _union(values)
        return _concatenated(values)


def _union(values: list[Any]) -> dict[str, object]:
    if not all(isinstance(each, Mapping) for each in values):
        raise TypeError("`reduce: union` joins objects, and a branch gave something else")
    return {key: value for each in values for key, value in each.items()}


def _concatenated(values: list[Any]) -> object:
    if all(isinstance(each, str) for each in values):
        return "".join(values)
    if not all(isinstance(each, list | tuple) for each in values):
        raise TypeError("`reduce: concat` joins lists, or texts, and a branch gave something else")
    return [item for each in values for item in each]


# --- Compiler from an error-free model to a pipeline --------------------------------------------------------------


class MakeAgent(Protocol):
    """Factory of model agents."""

    def __call__(
        self,
        model: str,
        *,
        name: str | None,
        system_prompt: str,
        schema: Mapping[str, object] | None,
        tools: list[Callable[..., object]],
        model_settings: Mapping[str, object] | None,
        timeout_s: float | None,
        retries: int,
    ) -> object:
        """Return an agent whose answers are objects that fit `schema`, or texts."""


def _labels_of(model: BlueprintModel) -> dict[str, str] | None:
    declared = model.value("labels")
    return dict(declared) if isinstance(declared, dict) else None


class Compiler:
    """Builds the pipeline of one file, and of those it imports."""

    def __init__(self, project: Project, make_agent: MakeAgent) -> None:
        self._project, self._make_agent = project, make_agent
        self._agents: dict[int, object] = {}

    def pipeline(self, model: BlueprintModel, *, limits: UsageLimits | None = None) -> Pipeline:
        """Return the whole file."""
        declared = model.value("context")
        initial = declared.get("initial") if isinstance(declared, dict) else None
        return Pipeline(
            self._steps(model, model.steps),
            name=model.name,
            usage_limits=limits,
            initial_context_data=None if initial is None else dict(initial.value),
            labels=_labels_of(model),
            schedules=model.schedules,
        )

    def _steps(self, model: BlueprintModel, steps: list[StepModel]) -> tuple[AnyStep, ...]:
        return tuple(self.step(model, step) for step in steps)

    def _body(self, model: BlueprintModel, steps: list[StepModel]) -> AnyStep:
        made = self._steps(model, steps)
        return made[0] if len(made) == 1 else Pipeline(made)

    def step(self, model: BlueprintModel, step: StepModel) -> AnyStep:
        """Return one step; a refused declaration is a finding at its name."""
        try:
            return self._step(model, step)
        except (NotThere, TemplateError, DeclarationError) as error:
            if isinstance(error, BlueprintError):
                raise
            rule = "V-X1" if isinstance(error, NotAllowed) else "V-A6"
            raise refusal(model, step.at, str(error), rule=rule) from error

    def _step(self, model: BlueprintModel, step: StepModel) -> AnyStep:
        options = self._options(model, step)
        match step.kind:
            case "parallel":
                return Step.parallel(step.name, self._branches(model, step), **_parallel(step), **options)
            case "conditional":
                return self._conditional(model, step, options)
            case "loop":
                until = self._decider(step, "exit_condition", "exit_expression", exit_of)
                turns = step.value("max_loops", 5)
                kept = step.value("keep_history", None)
                kept = {} if kept is None else {"keep_history": kept}
                return Step.loop_until(
                    step.name, self._body(model, step.body), until, max_loops=turns, **kept, **options
                )
            case "map":
                return self._map(model, step, options)
            case "hitl":
                message = message_of(step.value("message"))
                schema = step.value("input_schema")
                return Step.human_in_the_loop(step.name, message, input_schema=schema, **options)
            case "approval":
                return self._approval(model, step, options)
            case "sleep":
                seconds, until = duration_of(step.value("seconds")), instant_of(step.value("until"))
                return Step.sleep(step.name, seconds, until=until, **options)
            case "wait_for":
                return self._wait(model, step, options)
            case "sequence":
                return Step.sequence(step.name, Pipeline(self._steps(model, step.body)), **options)
            case "pipeline":
                return Pipeline(self._steps(model, step.body), name=step.name, **options)
        return self._runs(model, step, options)

    def _approval(self, model: BlueprintModel, step: StepModel, options: dict[str, Any]) -> AnyStep:
        ways: dict[str, Any] = {
            key: self._body(model, step.ways[key]) for key in ("on_timeout", "on_rejection") if key in step.ways
        }
        word = step.value("on_timeout", "fail")
        given: dict[str, Any] = {"on_timeout": word if isinstance(word, str) else "fail", **ways}
        for key in ("to", "timeout_s", "max_deferrals", "comment_required", "metadata"):
            if step.value(key) is not None:
                given[key] = step.value(key)
        named = step.value("options")
        choices = None if named is None else [_option(name, declared) for name, declared in named.items()]
        return Step.approval(step.name, message_of(step.value("message")), choices, **given, **options)

    def _wait(self, model: BlueprintModel, step: StepModel, options: dict[str, Any]) -> AnyStep:
        key, word = step.value("key"), step.value("on_timeout", "fail")
        late = self._body(model, step.ways["on_timeout"]) if "on_timeout" in step.ways else word
        return Step.wait_for(
            step.name,
            step.value("event"),
            key=None if key is None else message_of(key),
            schema=step.value("schema"),
            timeout_s=step.value("timeout_s"),
            on_timeout=late,
            **options,
        )

    # --- composites

    def _branches(self, model: BlueprintModel, step: StepModel) -> dict[str, AnyStep]:
        return {branch.name: self._body(model, branch.steps) for branch in step.branches}

    def _conditional(self, model: BlueprintModel, step: StepModel, options: dict[str, Any]) -> AnyStep:
        branches = self._branches(model, step)
        default = None if step.default is None else self._body(model, step.default)
        if step.default_name is not None:
            default = branches[step.default_name]
        select = self._decider(step, "condition", "condition_expression", choice_of)
        return Step.branch_on(step.name, select, branches, default=default, **options)

    def _decider(
        self, step: StepModel, function: str, expression: str, made: Callable[[str], Callable[..., object]]
    ) -> Callable[..., object]:
        named = step.value(function)
        return import_object(self._project, named) if named is not None else made(step.value(expression))

    def _map(self, model: BlueprintModel, step: StepModel, options: dict[str, Any]) -> AnyStep:
        declared = step.value("iterable_input")
        return Step.map_over(
            step.name,
            self._body(model, step.body),
            items=None if declared is None else items_of(declared),
            max_concurrency=step.value("max_concurrency"),
            merge=step.value("merge_strategy", "context_update"),
            **options,
        )

    # --- target of a step

    def _runs(self, model: BlueprintModel, step: StepModel, options: dict[str, Any]) -> AnyStep:
        used = step.uses
        assert used is not None
        match used.kind:
            case "import":
                return self._imported(model, step, options)
            case "builtin":
                return Step(step.name, _builtin(step, used.name), **options, **self._of_agent(model, step))
            case "agent":
                agent = self.agent(model, model.agents[used.name])
            case "python":
                agent = import_object(self._project, used.name)
        if isinstance(agent, Declared | Pipeline):
            return Step.sequence(step.name, agent, **options)
        more = self._of_agent(model, step)
        if (limit := step.value("rate_limit")) is not None:
            more["rate_limit"] = RateLimit(limit, **model.rate_limits[limit])
        granular = step.value("granular")
        if not granular:
            return Step(step.name, agent, **options, **more)
        switches = {key: entry.value for key, entry in granular.items()} if isinstance(granular, dict) else {}
        return Step.granular(step.name, agent, **switches, **options, **more)

    def _imported(self, model: BlueprintModel, step: StepModel, options: dict[str, Any]) -> AnyStep:
        assert step.uses is not None
        child = model.imports[step.uses.name].child
        assert child is not None, "an import with errors is not compiled"
        options.pop("updates_context", None)
        steps, limits = self._steps(child, child.steps), limits_of(child.entries.get("usage_limits"))
        if limits is not None and "usage_limits" not in options:
            options["usage_limits"] = limits
        return Step.sequence(step.name, Pipeline(steps), **options) if options else Pipeline(steps, name=step.name)

    def _of_agent(self, model: BlueprintModel, step: StepModel) -> dict[str, Any]:
        processing = self._processing(model, step)
        more: dict[str, Any] = {"mergeable_output": True} if step.value("mergeable_output") else {}
        if step.value("context_sources") is not None:
            more["context_sources"] = [self._source(each) for each in step.value("context_sources")]
        if (rehearse := step.value("rehearse")) is not None:
            more["rehearse"] = rehearse
        if (conversation := step.value("conversation")) is not None:
            more["conversation"] = message_of(conversation)
        if (cache := step.value("cache")) is not None:
            more["cache"] = Cache(**{key: entry.value for key, entry in cache.items()})
        return more if processing is None else {**more, "processing": processing}

    def _source(self, declared: Mapping[str, AgentEntry]) -> object:
        """Return one source of an agent's context."""
        if len(declared) != 1:
            raise DeclarationError("a source of `context_sources` has one key: literal, state, history or retrieval")
        ((kind, entry),) = declared.items()
        match kind:
            case "literal":
                return from_literal(entry.value)
            case "state":
                return from_state(entry.value)
            case "history":
                return from_history(entry.value)
        options = {key: each.value for key, each in entry.value.items()}
        return from_retrieval(import_object(self._project, options.pop("collection")), **options)

    def _processing(self, model: BlueprintModel, step: StepModel) -> Processing | None:
        """Return the structured output options after promotion of a schema."""
        declared = step.value("processing")
        switches = {key: entry.value for key, entry in declared.items()} if isinstance(declared, dict) else {}
        schema = switches.get("schema")
        if isinstance(schema, str):
            switches["schema"] = model.agents[schema.removeprefix("agents.")].value("output_schema")
        elif schema is None and step.uses is not None and step.uses.kind == "agent":
            promoted = model.agents[step.uses.name].value("output_schema")
            if promoted is not None and type_of(promoted) != "string":
                switches["schema"] = promoted
                switches.setdefault("degrade", False)  # an agent's declared output type never degrades to text
        return Processing(**switches) if switches else None

    def agent(self, model: BlueprintModel, agent: AgentModel) -> Any:
        """Return a model agent, made once however many steps run it."""
        if id(agent) not in self._agents:
            self._agents[id(agent)] = self._made(model, agent)
        return self._agents[id(agent)]

    def _made(self, model: BlueprintModel, agent: AgentModel) -> object:
        if agent.value("uses") is not None:
            return import_object(self._project, agent.value("uses"))
        schema = agent.value("output_schema")
        return self._make_agent(
            agent.value("model"),
            name=agent.value("name") if "name" in agent.entries else agent.name,
            system_prompt=self._prompt(model, agent),
            schema=schema if type_of(schema) == "object" else None,
            tools=[self._tool(each) for each in agent.value("tools", [])],
            model_settings=agent.value("model_settings"),
            timeout_s=agent.value("timeout_s"),
            retries=agent.value("retries", 1),
        )

    def _tool(self, declared: str | Mapping[str, AgentEntry]) -> Any:
        """Return a tool of an agent, with its declared approval."""
        if isinstance(declared, str):
            return import_object(self._project, declared)
        function = import_object(self._project, declared["uses"].value)
        approved = "requires_approval" in declared and declared["requires_approval"].value
        return _agents.approved_tool(function) if approved else function

    def _prompt(self, model: BlueprintModel, agent: AgentModel) -> str:
        declared = agent.value("system_prompt", "")
        if isinstance(declared, str):
            return declared
        directory = self._project.root if model.path is None else model.path.parent
        text = content_of(inside(self._project.root, directory, declared["from_file"].value)).decode("utf-8")
        variables = declared["variables"].value if "variables" in declared else {}
        return _filled_in(text, variables)

    # --- options of every step

    def _options(self, model: BlueprintModel, step: StepModel) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if step.value("input") is not None:
            options["input"] = input_of(step.value("input"))
        for key in ("max_retries", "timeout_s"):
            if (declared := step.option("config", key)) is not None:
                options[key] = declared
        backoff = step.option("config", "backoff")
        if isinstance(backoff, dict):
            options["backoff"] = Backoff(**{key: float(entry.value) for key, entry in backoff.items()})
        if (rules := step.option("config", "retry_on")) is not None:
            options["retry_on"] = tuple(_retry_rules(rules))
        if step.value("updates_context"):
            options["updates_context"] = True
        if (limits := limits_of(step.entries.get("usage_limits"))) is not None:
            options["usage_limits"] = limits
        if step.fallback is not None:
            options["fallback"] = self.step(model, step.fallback)
        if step.value("meta"):
            options["meta"] = step.value("meta")
        if step.value("runs_on") is not None:
            options["runs_on"] = step.value("runs_on")
        return options | self._undoing(model, step) | self._around(step)

    def _undoing(self, model: BlueprintModel, step: StepModel) -> dict[str, Any]:
        """Return the compensation and the failure handlers of a step."""
        found: dict[str, Any] = {}
        if step.value("compensate") is not None:
            found["compensate"] = import_object(self._project, step.value("compensate"))
        if "on_failure" in step.ways:
            found["on_failure"] = self._body(model, step.ways["on_failure"])
        elif step.value("on_failure") is not None:
            found["on_failure"] = import_object(self._project, step.value("on_failure"))
        return found

    def _around(self, step: StepModel) -> dict[str, object]:
        """Functions around the work itself."""
        around: dict[str, Any] = {}
        if step.value("validators"):
            around["validators"] = tuple(import_object(self._project, each) for each in step.value("validators"))
        before = [import_object(self._project, each) for each in step.option("processors", "before") or ()]
        after = [import_object(self._project, each) for each in step.option("processors", "after") or ()]
        if step.value("reduce") is not None:
            after.append(Reduce(step.value("reduce")))
        if step.value("output_template") is not None:
            after.append(OutputTemplate.of(step.value("output_template")))
        if step.value("sink_to") is not None:
            after.append(SinkTo(step.value("sink_to")))
        if before or after:
            around["processors"] = {"before": tuple(before), "after": tuple(after)}
        return around


def _option(name: str, declared: str | Mapping[str, AgentEntry]) -> Option:
    if isinstance(declared, str):
        return Option(name, declared)
    given: dict[str, Any] = {key: entry.value for key, entry in declared.items()}
    return Option(name, given.pop("label", ""), **given)


def _retry_rules(written: Iterable[int | str]) -> Iterator[RetryRule]:
    for each in written:
        if isinstance(each, int):
            yield each
        elif each == "provider_errors":
            yield from provider_errors
        elif (kind := exception_named(each)) is not None:
            yield kind


def _parallel(step: StepModel) -> dict[str, Any]:
    named = {"merge_strategy": "merge", "on_branch_failure": "on_branch_failure", "max_concurrency": "max_concurrency"}
    return {option: step.value(key) for key, option in named.items() if step.value(key) is not None}


def _builtin(step: StepModel, name: str) -> object:
    """Return a built-in, with its parameters if it takes any."""
    key = step.option("params", "key")
    if name == "wrap_dict":
        return BUILTINS["wrap_dict"](key) if key is not None else BUILTINS["wrap_dict"]
    if name == "ensure_object" and key is not None:
        return EnsureObject(key)
    return BUILTINS[name]


@attrs.frozen
class EnsureObject:
    """`builtins.ensure_object` with a key of its own."""

    key: str

    @property
    def __name__(self) -> str:
        return f"ensure_object({self.key!r})"

    def __call__(self, value: object) -> dict[str, object]:
        made: dict[str, Any] = BUILTINS["ensure_object"](value, self.key)
        return made


LIMITS = tuple(fields_of("usage_limits"))
"""Fields of limits available in a blueprint."""

AMOUNTS = tuple(name for name in LIMITS if "limit" in name)
"""Limits among them."""


def limits_of(entry: AgentEntry | None) -> UsageLimits | None:
    """Return the limits of a blueprint."""
    if entry is None or not entry.value:
        return None
    return UsageLimits(**{key: each.value for key, each in entry.value.items()})


def stricter(one: UsageLimits | None, other: UsageLimits | None) -> UsageLimits | None:
    """Return the smaller of two limits, each for itself."""
    if one is None or other is None:
        return one or other
    return attrs.evolve(one, **{name: _smaller(getattr(one, name), getattr(other, name)) for name in AMOUNTS})


def _smaller(one: Any, other: Any) -> Any:
    return min((each for each in (one, other) if each is not None), default=None)


def _filled_in(text: str, variables: Mapping[str, str]) -> str:
    """Return a prompt with its fixed variables; other text is unchanged."""
    for name, value in variables.items():
        for spelled in (f"{{{{ {name} }}}}", f"{{{{{name}}}}}"):
            text = text.replace(spelled, value)
    return text
