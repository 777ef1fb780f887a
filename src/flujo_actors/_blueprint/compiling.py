"""A model without errors becomes a pipeline. Agents are made by `make_agent`, which is given: no model library here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs

from .._core.backoff import Backoff
from .._core.usage import UsageLimits
from .._dsl.declared import Declared
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.processing import Processing
from .._dsl.step import Step
from ..errors import BlueprintError, DeclarationError
from ..structured._builtins import BUILTINS
from .fields import fields_of
from .importing import NotThere, import_object
from .model import AgentModel, BlueprintModel, Entry, StepModel
from .processors import OutputTemplate, Reduce, SinkTo
from .project import Project, content_of, inside
from .refusing import refusal
from .shapes import type_of
from .template_values import TemplateError
from .templates import choice_of, exit_of, input_of, items_of, message_of


class MakeAgent(Protocol):
    """Makes a model agent of what a blueprint says."""

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
        """An agent whose answers are objects that fit `schema`, or texts."""


class Compiler:
    """Builds the pipeline of one file, and of those it imports."""

    def __init__(self, project: Project, make_agent: MakeAgent) -> None:
        self._project, self._make_agent = project, make_agent
        self._agents: dict[int, object] = {}

    def pipeline(self, model: BlueprintModel, *, limits: UsageLimits | None = None) -> Pipeline:
        """The whole file."""
        declared = model.value("context")
        initial = declared.get("initial") if isinstance(declared, dict) else None
        return Pipeline(
            self._steps(model, model.steps),
            name=model.name,
            usage_limits=limits,
            initial_context_data=None if initial is None else dict(initial.value),
        )

    def _steps(self, model: BlueprintModel, steps: list[StepModel]) -> tuple[AnyStep, ...]:
        return tuple(self.step(model, step) for step in steps)

    def _body(self, model: BlueprintModel, steps: list[StepModel]) -> AnyStep:
        made = self._steps(model, steps)
        return made[0] if len(made) == 1 else Pipeline(made)

    def step(self, model: BlueprintModel, step: StepModel) -> AnyStep:
        """One step; what its declaration refuses is a finding at its name."""
        try:
            return self._step(model, step)
        except (NotThere, TemplateError, DeclarationError) as error:
            if isinstance(error, BlueprintError):
                raise
            raise refusal(model, step.at, str(error)) from error

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
                return Step.loop_until(step.name, self._body(model, step.body), until, max_loops=turns, **options)
            case "map":
                return self._map(model, step, options)
            case "hitl":
                message = message_of(step.value("message"))
                schema = step.value("input_schema")
                return Step.human_in_the_loop(step.name, message, input_schema=schema, **options)
            case "sequence":
                return Step.sequence(step.name, Pipeline(self._steps(model, step.body)), **options)
            case "pipeline":
                return Pipeline(self._steps(model, step.body), name=step.name, **options)
        return self._runs(model, step, options)

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
        said = step.value("iterable_input")
        return Step.map_over(
            step.name,
            self._body(model, step.body),
            items=None if said is None else items_of(said),
            max_concurrency=step.value("max_concurrency"),
            merge=step.value("merge_strategy", "context_update"),
            **options,
        )

    # --- what a step runs

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
        mergeable = {"mergeable_output": True} if step.value("mergeable_output") else {}
        return mergeable if processing is None else {**mergeable, "processing": processing}

    def _processing(self, model: BlueprintModel, step: StepModel) -> Processing | None:
        """The switches of a step after promotion: its schema is its own, else its agent's."""
        said = step.value("processing")
        switches = {key: entry.value for key, entry in said.items()} if isinstance(said, dict) else {}
        schema = switches.get("schema")
        if isinstance(schema, str):
            switches["schema"] = model.agents[schema.removeprefix("agents.")].value("output_schema")
        elif schema is None and step.uses is not None and step.uses.kind == "agent":
            promoted = model.agents[step.uses.name].value("output_schema")
            if promoted is not None and type_of(promoted) != "string":
                switches["schema"] = promoted
                switches.setdefault("degrade", False)  # what an agent declares never becomes a text
        return Processing(**switches) if switches else None

    def agent(self, model: BlueprintModel, agent: AgentModel) -> Any:
        """A model agent, made once however many steps run it."""
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
            tools=[import_object(self._project, each) for each in agent.value("tools", [])],
            model_settings=agent.value("model_settings"),
            timeout_s=agent.value("timeout_s"),
            retries=agent.value("retries", 1),
        )

    def _prompt(self, model: BlueprintModel, agent: AgentModel) -> str:
        said = agent.value("system_prompt", "")
        if isinstance(said, str):
            return said
        directory = self._project.root if model.path is None else model.path.parent
        text = content_of(inside(self._project.root, directory, said["from_file"].value)).decode("utf-8")
        variables = said["variables"].value if "variables" in said else {}
        return _filled_in(text, variables)

    # --- what every step has

    def _options(self, model: BlueprintModel, step: StepModel) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if step.value("input") is not None:
            options["input"] = input_of(step.value("input"))
        for key in ("max_retries", "timeout_s"):
            if (said := step.option("config", key)) is not None:
                options[key] = said
        backoff = step.option("config", "backoff")
        if isinstance(backoff, dict):
            options["backoff"] = Backoff(**{key: float(entry.value) for key, entry in backoff.items()})
        if step.value("updates_context"):
            options["updates_context"] = True
        if (limits := limits_of(step.entries.get("usage_limits"))) is not None:
            options["usage_limits"] = limits
        if step.fallback is not None:
            options["fallback"] = self.step(model, step.fallback)
        if step.value("meta"):
            options["meta"] = step.value("meta")
        return options | self._around(step)

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


def _parallel(step: StepModel) -> dict[str, Any]:
    named = {"merge_strategy": "merge", "on_branch_failure": "on_branch_failure", "max_concurrency": "max_concurrency"}
    return {option: step.value(key) for key, option in named.items() if step.value(key) is not None}


def _builtin(step: StepModel, name: str) -> object:
    """A built-in, with its parameters if it takes any."""
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
"""The limits that a blueprint can say."""


def limits_of(entry: Entry | None) -> UsageLimits | None:
    """The limits that a blueprint says."""
    if entry is None or not entry.value:
        return None
    return UsageLimits(**{key: each.value for key, each in entry.value.items()})


def stricter(one: UsageLimits | None, other: UsageLimits | None) -> UsageLimits | None:
    """The smaller of two limits, each for itself."""
    if one is None or other is None:
        return one or other
    return UsageLimits(**{name: _smaller(getattr(one, name), getattr(other, name)) for name in LIMITS})


def _smaller(one: Any, other: Any) -> Any:
    return min((each for each in (one, other) if each is not None), default=None)


def _filled_in(text: str, variables: Mapping[str, str]) -> str:
    """The text of a prompt with its fixed variables; what is no variable stays as it is."""
    for name, value in variables.items():
        for spelled in (f"{{{{ {name} }}}}", f"{{{{{name}}}}}"):
            text = text.replace(spelled, value)
    return text
