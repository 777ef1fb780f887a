"""A pipeline as a blueprint: `load_blueprint` of the text has the same fingerprint.

Functions are named as `module:name`, agents said by model, prompt, JSON Schema and tools. What no blueprint can say (a
lambda, a closure, a partial, a bound method, `deps`) is listed, all of it at once, in one `NotExportable`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import attrs

from .._core.backoff import Backoff
from .._core.usage import UsageLimits
from .._dsl.call_plan import is_model_agent
from .._dsl.declared import Declared
from .._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Parallel, SequenceOf
from .._dsl.pipeline import AnyStep, Pipeline
from .._dsl.processing import NO_PROCESSING
from .._dsl.step import Step
from ..errors import NotExportable
from ..structured._builtins import BUILTINS, WrapDict
from .compiling import LIMITS, EnsureObject
from .processors import OutputTemplate, Reduce, SinkTo
from .template_parsing import is_template
from .templates import Choice, Exit, Input, Items, Message
from .used import is_python
from .yaml_dump import dumped

Data = dict[str, object]

_OWN_PROCESSORS = (
    (SinkTo, "sink_to", "path"),
    (OutputTemplate, "output_template", "text"),
    (Reduce, "reduce", "how"),
)
"""What blueprints put behind the work of a step, the last first."""

_SAID_IN_PYTHON = (
    "deps",
    "message_history",
    "context_sources",
    "guard",
    "batch",
    "on_failure",
    "compensate",
    "min_confidence",
    "confidence",
    "on_low_confidence",
    "runs_on",
)
"""Options that the language has no key for."""

_OWN_REDUCERS = "reducers of its own (`merge`) can only be said in Python"


def dump_blueprint(pipeline: Pipeline) -> str:
    """The text of a blueprint that says what the pipeline says; `NotExportable` if none can."""
    return _Export().text(pipeline)


class _Export:
    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._agents: dict[str, Data] = {}
        self._names: dict[int, str] = {}
        self._where = ""

    def text(self, pipeline: Pipeline) -> str:
        self._where = pipeline.title
        steps = [self._step(step, name) for step, name in pipeline.named_steps]
        document: Data = {"version": "1"}
        if pipeline.name is not None:
            document["name"] = pipeline.name
        if pipeline.initial_context_data:
            document["context"] = {"initial": dict(pipeline.initial_context_data)}
        document |= self._of_pipeline(pipeline)
        if self._agents:
            document["agents"] = self._agents
        if self._reasons:
            raise NotExportable(tuple(self._reasons))
        return dumped({**document, "steps": steps})

    def _of_pipeline(self, pipeline: Pipeline) -> Data:
        """What a pipeline says of itself, wherever it stands; the context begins with what the outermost one says."""
        self._only_python(pipeline)
        return {} if pipeline.usage_limits is None else {"usage_limits": self._limits(pipeline.usage_limits)}

    def _cannot(self, what: str) -> None:
        self._reasons.append(f"step {self._where!r}: {what}")

    def _only_python(self, step: AnyStep) -> None:
        usual = {each.name: each.default for each in attrs.fields(type(step))}
        said = [name for name in _SAID_IN_PYTHON if name in usual and getattr(step, name) != usual[name]]
        if said:
            self._cannot(f"{', '.join(f'`{name}`' for name in said)} can only be said in Python")

    # --- steps

    def _sequence(self, step: AnyStep) -> list[Data]:
        """The steps that stand for one: several that nothing holds together are a list."""
        if isinstance(step, Pipeline) and step.dissolves and len(step.steps) > 1:
            return [self._step(each, name) for each, name in step.named_steps]
        return [self._step(step, step.name or "pipeline")]

    def _step(self, step: AnyStep, name: str) -> Data:
        outer, self._where = self._where, name
        if isinstance(step, Pipeline):
            said = {**self._nested(step), **self._of_pipeline(step)}
        else:
            said = {**self._kind(step), **dict(self._options(step))}
        self._where = outer
        return {"name": name, **said}

    def _nested(self, pipeline: Pipeline) -> Data:
        return {"kind": "pipeline", "body": [self._step(each, name) for each, name in pipeline.named_steps]}

    def _kind(self, step: Declared) -> Data:
        match step:
            case Step():
                return self._runs(step)
            case Parallel():
                return self._parallel(step)
            case BranchOn():
                return self._conditional(step)
            case LoopUntil():
                return {
                    "kind": "loop",
                    "max_loops": step.max_loops,
                    **self._decider(step.until, Exit, "exit_expression", "exit_condition"),
                    "body": self._sequence(step.body),
                }
            case MapOver():
                return self._map(step)
            case HumanInTheLoop():
                return self._question(step)
            case SequenceOf():
                return {**self._nested(step.body), "kind": "sequence"}
        self._cannot(f"a step of the kind {step.kind!r} has no place in a blueprint")
        return {}

    def _parallel(self, step: Parallel) -> Data:
        said: Data = {"kind": "parallel", "branches": self._branches(step.branches)}
        if not isinstance(step.merge, str):
            self._cannot(_OWN_REDUCERS)
        elif step.merge != "context_update":
            said["merge_strategy"] = step.merge
        if step.on_branch_failure != "propagate":
            said["on_branch_failure"] = step.on_branch_failure
        return said if step.max_concurrency is None else {**said, "max_concurrency": step.max_concurrency}

    def _branches(self, branches: Mapping[object, AnyStep]) -> Data:
        for key in branches:
            if not isinstance(key, str):
                self._cannot(f"the branch {key!r} is not called by a text")
        return {str(key): self._sequence(branch) for key, branch in branches.items()}

    def _conditional(self, step: BranchOn) -> Data:
        said = {
            "kind": "conditional",
            **self._decider(step.select, Choice, "condition_expression", "condition"),
            "branches": self._branches(step.branches),
        }
        return said if step.default is None else {**said, "default_branch": self._sequence(step.default)}

    def _decider(self, decides: object, kind: type[Choice | Exit], expression: str, function: str) -> Data:
        if isinstance(decides, kind):
            return {expression: decides.text}
        return {function: self._function(decides, function)}

    def _map(self, step: MapOver) -> Data:
        said: Data = {"kind": "map", "body": self._sequence(step.body)}
        if isinstance(step.items, Items):
            said["iterable_input"] = step.items.text
        elif step.items is not None:
            self._cannot("items are an expression in a blueprint (`iterable_input`), not a value or a function")
        if not isinstance(step.merge, str):
            self._cannot(_OWN_REDUCERS)
        elif step.merge != "context_update":
            said["merge_strategy"] = step.merge
        return said if step.max_concurrency is None else {**said, "max_concurrency": step.max_concurrency}

    def _question(self, step: HumanInTheLoop) -> Data:
        said: Data = {"kind": "hitl"}
        if isinstance(step.message, Message):
            said["message"] = step.message.text
        elif isinstance(step.message, str):
            said["message"] = _literal(step.message)
        else:
            self._cannot("its message is a function")
        if step.input_schema is not None:
            said["input_schema"] = self._schema(step.input_schema, "input_schema")
        return said

    # --- what a step runs

    def _runs(self, step: Step) -> Data:
        said = self._uses(step.agent)
        if step.processing != NO_PROCESSING:
            said["processing"] = self._processing(step)
        if step.mergeable_output:
            said["mergeable_output"] = True
        if step.resumable is not None:
            kept = {"max_turns": step.resumable.max_turns, "on_uncertain": step.resumable.on_uncertain}
            last = step.resumable.keep_last
            said["granular"] = kept if last is None else {**kept, "keep_last": last}
        return said

    def _uses(self, agent: object) -> Data:
        if is_model_agent(agent):
            return {"uses": f"agents.{self._agent(agent)}"}
        if isinstance(agent, WrapDict):
            return {"uses": "builtins.wrap_dict", "params": {"key": agent.key}}
        if isinstance(agent, EnsureObject):
            return {"uses": "builtins.ensure_object", "params": {"key": agent.key}}
        known = next((name for name, function in BUILTINS.items() if function is agent), None)
        return {"uses": f"builtins.{known}" if known else self._function(agent, "its agent")}

    def _processing(self, step: Step) -> Data:
        processing = step.processing
        said = {key: getattr(processing, key) for key in ("structured_output", "enforcement", "degrade")}
        default = {"structured_output": "auto", "enforcement": "repair", "degrade": None}
        kept = {key: value for key, value in said.items() if value != default[key]}
        if processing.schema is None:
            return kept
        return {**kept, "schema": self._schema(processing.schema, "processing.schema")}

    def _schema(self, schema: object, what: str) -> Data:
        if isinstance(schema, Mapping):
            return dict(schema)
        from ..structured._schema import compile_schema  # loads pydantic

        return dict(compile_schema(schema).json_schema)

    # --- agents

    def _agent(self, agent: object) -> str:
        if id(agent) not in self._names:
            name = self._free_name(agent)
            self._names[id(agent)] = name
            self._agents[name] = self._said(agent, name)
        return self._names[id(agent)]

    def _free_name(self, agent: Any) -> str:
        wanted = agent.name if isinstance(agent.name, str) and agent.name.isidentifier() else "agent"
        tried = (wanted, *(f"{wanted}_{number}" for number in range(2, len(self._agents) + 3)))
        return next(each for each in tried if each not in self._agents)

    def _said(self, agent: Any, name: str) -> Data:
        said: Data = {"model": self._model(agent)}
        prompts = [*getattr(agent, "_system_prompts", ()), *_instructions(agent)]
        if getattr(agent, "_system_prompt_functions", ()) or len(prompts) > 1 or list(_instructions(agent)):
            self._cannot("its agent is told more than one fixed system prompt")
        elif prompts:
            said["system_prompt"] = prompts[0]
        schema = self._output_schema(agent)
        if schema is not None:
            said["output_schema"] = schema
        tools = [tool.function for toolset in agent.toolsets for tool in getattr(toolset, "tools", {}).values()]
        if tools:
            said["tools"] = [self._function(each, "a tool of its agent") for each in tools]
        said |= self._limits_of_agent(agent)
        return said if agent.name == name else {**said, "name": agent.name}

    def _limits_of_agent(self, agent: Any) -> Data:
        said: Data = {}
        if agent.model_settings:
            said["model_settings"] = dict(agent.model_settings)
        if getattr(agent, "timeout_s", None) is not None:
            said["timeout_s"] = agent.timeout_s
        tools, output = (getattr(agent, f"_max_{what}_retries", 1) for what in ("tool", "output"))
        if tools != output:
            self._cannot("its agent has other `retries` for tools than for outputs")
        return said if tools == 1 else {**said, "retries": tools}

    def _model(self, agent: Any) -> object:
        model = agent.model
        if isinstance(model, str):
            return model
        name = getattr(model, "model_id", None) or getattr(model, "model_name", None)
        if getattr(model, "model_name", None) == "test":
            return "test"
        self._cannot(f"the model {name!r} of its agent is an object; name it by a text")
        return str(name)

    def _output_schema(self, agent: Any) -> Data | None:
        output = agent.output_type
        if output is str:
            return None
        if hasattr(output, "__get_pydantic_json_schema__") or inspect.isclass(output):
            return self._schema(_json_schema(output), "output_type")
        self._cannot(f"the output type {output!r:.60} of its agent is no JSON Schema")
        return None

    # --- what every step has

    def _options(self, step: Declared) -> Iterator[tuple[str, object]]:
        if isinstance(step.input, Input):
            yield "input", _input(step.input)
        elif callable(step.input):
            self._cannot("its input is a function")
        elif step.input is not None:
            yield "input", _escaped(step.input)
        config = dict(self._config(step))
        if config:
            yield "config", config
        if step.usage_limits is not None:
            yield "usage_limits", self._limits(step.usage_limits)
        if step.updates_context:
            yield "updates_context", True
        yield from self._around(step)
        if step.fallback is not None:
            yield "fallback", self._step(step.fallback, step.fallback.name or "pipeline")
        if step.meta:
            yield "meta", dict(step.meta)
        self._only_python(step)

    def _limits(self, limits: UsageLimits) -> Data:
        said = {name: value for name, value in _changed(limits).items() if name in LIMITS}
        others = [name for name in _changed(limits) if name not in LIMITS]
        if others:
            self._cannot(f"{', '.join(others)} of its usage limits can only be said in Python")
        return said

    def _config(self, step: Declared) -> Iterator[tuple[str, object]]:
        if step.max_retries:
            yield "max_retries", step.max_retries
        if step.timeout_s is not None:
            yield "timeout_s", step.timeout_s
        if step.backoff != Backoff():
            yield "backoff", {name: getattr(step.backoff, name) for name in ("first", "factor", "ceiling", "jitter")}

    def _around(self, step: Declared) -> Iterator[tuple[str, object]]:
        if step.validators:
            yield "validators", [self._function(each, "a validator") for each in step.validators]
        after = list(step.processors.after)
        own: Data = {}
        for kind, key, said in _OWN_PROCESSORS:
            if after and isinstance(after[-1], kind):
                own[key] = getattr(after.pop(), said)
        sides = {"before": list(step.processors.before), "after": after}
        named = {
            side: [self._function(each, "a processor") for each in given] for side, given in sides.items() if given
        }
        if named:
            yield "processors", named
        yield from own.items()

    def _function(self, function: Any, what: str) -> str:
        if isinstance(function, functools.partial):
            self._cannot(f"{what} is a partial; give the function a name of its own")
        elif inspect.ismethod(function):
            self._cannot(f"{what} is a bound method")
        elif not isinstance(function, FunctionType | type) and not hasattr(function, "__qualname__"):
            self._cannot(f"{what} is an object of {type(function).__name__}, which has no name of its own")
        elif function.__name__ == "<lambda>":
            self._cannot(f"{what} is a lambda; give it a name")
        elif "<locals>" in function.__qualname__:
            self._cannot(f"{what}, {function.__qualname__}, is defined inside a function")
        elif not is_python(f"{function.__module__}:{function.__qualname__}"):
            self._cannot(f"{what}, {function.__module__}:{function.__qualname__}, has no public name")
        return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _instructions(agent: object) -> list[object]:
    return list(getattr(agent, "_instructions", ()) or ())


def _json_schema(output: object) -> object:
    """The schema of a `StructuredDict`, or the class itself."""
    made = getattr(output, "__get_pydantic_json_schema__", None)
    if inspect.isclass(output) and issubclass(output, dict) and made is not None:
        return made(None, None)
    return output


def _changed(limits: UsageLimits) -> Data:
    """The limits that are not what they are by default."""
    given = {each.name: (getattr(limits, each.name), each.default) for each in attrs.fields(UsageLimits)}
    return {name: value for name, (value, usual) in given.items() if value != usual}


def _literal(text: str) -> str:
    """A text that means itself, also if it looks like a template."""
    return f"{{% raw %}}{text}{{% endraw %}}" if is_template(text) else text


def _escaped(value: object) -> object:
    match value:
        case str():
            return _literal(value)
        case list() | tuple():
            return [_escaped(each) for each in value]
        case Mapping():
            return {key: _escaped(each) for key, each in value.items()}
    return value


def _input(given: Input) -> object:
    return given.source
