"""Export of a pipeline as a blueprint of the same fingerprint.

Functions are named as `module:name`, agents by model, prompt, JSON Schema and tools. Everything that a blueprint cannot
express (a lambda, a closure, a partial, a bound method, `deps`) is listed in one `NotExportable`.
"""

from __future__ import annotations

import datetime as dt
import functools
import inspect
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

import attrs
import yaml

from .. import structured
from .._core.policies.approval_policy import DEFAULT_OPTIONS, Option
from .._core.policies.rate_limits import RateLimit
from .._core.retry_decisions import Backoff, RetryRule
from .._core.usage import UsageLimits
from .._dsl.call_plan import is_model_agent, name_of
from .._dsl.compensation_options import Compensate
from .._dsl.context_sources import (
    FromHistory,
    FromLiteral,
    FromRetrieval,
    FromState,
    Source,
    as_context_sources,
    from_retrieval,
)
from .._dsl.declared_step import Declared
from .._dsl.kinds import BranchOn, HumanInTheLoop, LoopUntil, MapOver, Parallel, SequenceOf
from .._dsl.output_options import NO_PROCESSING
from .._dsl.pipeline import AnyStep, Pipeline, StepLike, as_step, step_of
from .._dsl.step_declaration import Step
from .._dsl.wait_steps import Approval, Sleep, WaitFor
from ..errors import NotExportable
from ..structured._builtins import BUILTINS, WrapDict
from .compiler import LIMITS, EnsureObject, OutputTemplate, Reduce, SinkTo
from .lint.edits import changed_data
from .lint.step_references import is_python
from .lint.value_schemas import type_of
from .parser.analysis import Analysis
from .parser.blueprint_model import StepModel
from .parser.field_parser import exception_named
from .parser.field_table import ONLY_IN_PYTHON
from .parser.findings import Change
from .templates.template_parser import is_template
from .templates.templates import (
    DurationTemplate,
    Exit,
    Input,
    InstantTemplate,
    Items,
    MessageTemplate,
    TemplateChoice,
)

# --- Blueprint text of data ---------------------------------------------------------------------------------------


class _WrittenOut(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        """Disable anchors: repeated values are written repeatedly."""
        return True


def dumped(data: object) -> str:
    """Block style, keys in the order they have."""
    text: str = yaml.dump(data, Dumper=_WrittenOut, sort_keys=False, allow_unicode=True, width=110)
    return text


# --- Blueprint text with promoted structured output options -------------------------------------------------------


def promoted_text(analysis: Analysis) -> str:
    """Return the file with explicit `processing` for every structured step, without comments."""
    changes = [change for step in analysis.model.all_steps() for change in _promotion(analysis, step)]
    return dumped(changed_data(analysis.model.root, changes))


def _promotion(analysis: Analysis, step: StepModel) -> list[Change]:
    schema = analysis.flow.schema_of(step)
    if schema is None or type_of(schema) == "string":
        return []
    data = step.value("processing")
    own = {key: entry.value for key, entry in data.items()} if isinstance(data, dict) else {}
    switches = {"structured_output": "auto", **own, "schema": dict(schema)}
    return [Change(kind="set", node=step.node, key="processing", value=switches)]


Data = dict[str, object]

_OWN_PROCESSORS = (
    (SinkTo, "sink_to", "path"),
    (OutputTemplate, "output_template", "text"),
    (Reduce, "reduce", "how"),
)
"""Processors that blueprints append to a step, the last first."""

_OWN_REDUCERS = "reducers of its own (`merge`) can only be declared in Python"


def dump_blueprint(pipeline: StepLike) -> str:
    """Return the blueprint text of the pipeline, or raise `NotExportable`."""
    return _Export().text(Pipeline.from_step(as_step(pipeline, where="the pipeline of a blueprint")))


class _Export:
    def __init__(self) -> None:
        self._reasons: list[str] = []
        self._agents: dict[str, Data] = {}
        self._rate_limits: dict[str, Data] = {}
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
        if pipeline.labels:
            document["labels"] = dict(pipeline.labels)
        if pipeline.schedules:
            document["schedules"] = {name: _schedule_data(options) for name, options in pipeline.schedules.items()}
        if self._rate_limits:
            document["rate_limits"] = self._rate_limits
        if self._agents:
            document["agents"] = self._agents
        if self._reasons:
            raise NotExportable(tuple(self._reasons))
        return dumped({**document, "steps": steps})

    def _of_pipeline(self, pipeline: Pipeline) -> Data:
        """Return a pipeline's options; the outermost defines the initial context."""
        self._only_python(pipeline)
        undoing = [name for name in ("on_failure", "compensate") if getattr(pipeline, name)]
        if undoing:
            self._cannot(f"`{'`, `'.join(undoing)}` of a pipeline can only be declared in Python; use a sequence")
        return {} if pipeline.usage_limits is None else {"usage_limits": self._limits(pipeline.usage_limits)}

    def _cannot(self, subject: str) -> None:
        self._reasons.append(f"step {self._where!r}: {subject}")

    def _only_python(self, step: AnyStep) -> None:
        usual = {each.name: each.default for each in attrs.fields(type(step))}
        names = [name for name in ONLY_IN_PYTHON if name in usual and getattr(step, name) != usual[name]]
        if names:
            self._cannot(f"{', '.join(f'`{name}`' for name in names)} can only be declared in Python")

    # --- steps

    def _sequence(self, step: AnyStep) -> list[Data]:
        """Return the steps of one entry; a plain sequence is a list."""
        if isinstance(step, Pipeline) and step.dissolves and len(step.steps) > 1:
            return [self._step(each, name) for each, name in step.named_steps]
        return [self._step(step, step.name or "pipeline")]

    def _step(self, step: AnyStep, name: str) -> Data:
        outer, self._where = self._where, name
        if isinstance(step, Pipeline):
            data = {**self._nested(step), **self._of_pipeline(step)}
        else:
            data = {**self._kind(step), **dict(self._options(step))}
        self._where = outer
        return {"name": name, **data}

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
                    **({} if step.keep_history is None else {"keep_history": step.keep_history}),
                    **self._decider(step.until, Exit, "exit_expression", "exit_condition"),
                    "body": self._sequence(step.body),
                }
            case MapOver():
                return self._map(step)
            case HumanInTheLoop():
                return self._question(step)
            case Approval():
                return self._approval(step)
            case Sleep():
                return self._sleep(step)
            case WaitFor():
                return self._wait(step)
            case SequenceOf():
                return {**self._nested(step.body), "kind": "sequence"}
        self._cannot(f"a step of the kind {step.kind!r} has no place in a blueprint")
        return {}

    def _parallel(self, step: Parallel) -> Data:
        data: Data = {"kind": "parallel", "branches": self._branches(step.branches)}
        if not isinstance(step.merge, str):
            self._cannot(_OWN_REDUCERS)
        elif step.merge != "context_update":
            data["merge_strategy"] = step.merge
        if step.on_branch_failure != "propagate":
            data["on_branch_failure"] = step.on_branch_failure
        return data if step.max_concurrency is None else {**data, "max_concurrency": step.max_concurrency}

    def _branches(self, branches: Mapping[object, AnyStep]) -> Data:
        for key in branches:
            if not isinstance(key, str):
                self._cannot(f"the branch {key!r} is not called by a text")
        return {str(key): self._sequence(branch) for key, branch in branches.items()}

    def _conditional(self, step: BranchOn) -> Data:
        data = {
            "kind": "conditional",
            **self._decider(step.select, TemplateChoice, "condition_expression", "condition"),
            "branches": self._branches(step.branches),
        }
        return data if step.default is None else {**data, "default_branch": self._sequence(step.default)}

    def _decider(self, decides: object, kind: type[TemplateChoice | Exit], expression: str, function: str) -> Data:
        if isinstance(decides, kind):
            return {expression: decides.text}
        return {function: self._function(decides, function)}

    def _map(self, step: MapOver) -> Data:
        data: Data = {"kind": "map", "body": self._sequence(step.body)}
        if isinstance(step.items, Items):
            data["iterable_input"] = step.items.text
        elif step.items is not None:
            self._cannot("items are an expression in a blueprint (`iterable_input`), not a value or a function")
        if not isinstance(step.merge, str):
            self._cannot(_OWN_REDUCERS)
        elif step.merge != "context_update":
            data["merge_strategy"] = step.merge
        return data if step.max_concurrency is None else {**data, "max_concurrency": step.max_concurrency}

    def _question(self, step: HumanInTheLoop) -> Data:
        data: Data = {"kind": "hitl", **self._message(step.message)}
        if step.input_schema is not None:
            data["input_schema"] = self._schema(step.input_schema, "input_schema")
        return data

    def _approval(self, step: Approval) -> Data:
        data: Data = {"kind": "approval", **self._message(step.message)}
        if step.to is not None:
            data["to"] = step.to
        if step.options != DEFAULT_OPTIONS:
            data["options"] = {option.name: _option_data(option) for option in step.options}
        if step.deadline_s is not None:
            data["timeout_s"] = step.deadline_s
        if step.on_timeout != "fail":
            late = step.on_timeout
            data["on_timeout"] = late if isinstance(late, str) else self._sequence(late)
        if step.max_deferrals != 3:
            data["max_deferrals"] = step.max_deferrals
        if step.on_rejection is not None:
            data["on_rejection"] = self._sequence(step.on_rejection)
        if step.comment_required:
            data["comment_required"] = True
        if step.metadata:
            data["metadata"] = dict(step.metadata)
        return data

    def _message(self, message: object) -> Data:
        if isinstance(message, MessageTemplate):
            return {"message": message.text}
        if isinstance(message, str):
            return {"message": _literal(message)}
        self._cannot("its message is a function")
        return {}

    def _sleep(self, step: Sleep) -> Data:
        name, time = ("seconds", step.seconds) if step.until is None else ("until", step.until)
        if isinstance(time, DurationTemplate | InstantTemplate):
            return {"kind": "sleep", name: time.text}
        if callable(time):
            self._cannot(f"its {name} is a function")
            return {"kind": "sleep"}
        return {"kind": "sleep", name: time.isoformat() if isinstance(time, dt.datetime) else time}

    def _wait(self, step: WaitFor) -> Data:
        data: Data = {"kind": "wait_for", "event": step.event}
        if isinstance(step.key, MessageTemplate):
            data["key"] = step.key.text
        elif isinstance(step.key, str):
            data["key"] = _literal(step.key)
        elif step.key is not None:
            self._cannot("its key is a function")
        if step.schema is not None:
            data["schema"] = self._schema(step.schema, "schema")
        if step.deadline_s is not None:
            data["timeout_s"] = step.deadline_s
        if step.on_timeout != "fail":
            late = step.on_timeout
            data["on_timeout"] = late if isinstance(late, str) else self._sequence(late)
        return data

    # --- target of a step

    def _runs(self, step: Step) -> Data:
        data = self._uses(step.agent)
        if step.processing != NO_PROCESSING:
            data["processing"] = self._processing(step)
        if step.mergeable_output:
            data["mergeable_output"] = True
        if step.resumable is not None:
            kept = {"max_turns": step.resumable.max_turns, "on_uncertain": step.resumable.on_uncertain}
            last = step.resumable.keep_last
            data["granular"] = kept if last is None else {**kept, "keep_last": last}
        if step.context_sources is not None:
            data["context_sources"] = [self._source(each) for each in step.context_sources.sources]
            if step.context_sources != as_context_sources(list(step.context_sources.sources)):
                self._cannot("`max_tokens`, `format` and `count_tokens` of context sources can only be set in Python")
        if isinstance(step.conversation, MessageTemplate):
            data["conversation"] = step.conversation.text
        elif isinstance(step.conversation, str):
            data["conversation"] = _literal(step.conversation)
        elif step.conversation is not None:
            self._cannot("its conversation is a function")
        if step.cache is not None:
            if step.cache.key is not None:
                self._cannot("the key of its cache is a function")
            scope = {} if step.cache.scope is None else {"scope": step.cache.scope}
            data["cache"] = {"ttl_s": step.cache.ttl_s, **scope}
        if step.rehearse != "recorded":
            data["rehearse"] = step.rehearse
        if step.rate_limit:
            data["rate_limit"] = self._rate_limit(step.rate_limit)
        return data

    def _rate_limit(self, limits: tuple[RateLimit, ...]) -> str:
        if len(limits) > 1:
            self._cannot("it has several rate limits; a file has one for each step")
        limit = limits[0]
        usual = {each.name: each.default for each in attrs.fields(RateLimit)}
        options = {name: value for name, value in attrs.asdict(limit).items() if value != usual[name]}
        options.pop("name")
        if self._rate_limits.setdefault(limit.name, options) != options:
            self._cannot(f"two rate limits are named {limit.name!r}")
        return limit.name

    def _source(self, source: Source) -> Data:
        match source:
            case FromLiteral():
                return {"literal": source.text}
            case FromState(where=str() as where, name=name) if name == where:
                return {"state": where}
            case FromHistory(keep_last=None, remember=False):
                return {"history": source.where}
            case FromRetrieval() if source == _plain_retrieval(source):
                return {"retrieval": self._retrieval(source)}
        self._cannot("a source of its context is a function, or has options that only Python has")
        return {}

    def _retrieval(self, source: FromRetrieval) -> Data:
        data: Data = {"collection": self._function(source.collection, "a collection")}
        if source.query is not None:
            data["query"] = source.query
        if source.top_k != 5:
            data["top_k"] = source.top_k
        return {**data, "filters": dict(source.filters)} if source.filters else data

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
        data = {key: getattr(processing, key) for key in ("structured_output", "enforcement", "degrade")}
        default = {"structured_output": "auto", "enforcement": "repair", "degrade": None}
        kept = {key: value for key, value in data.items() if value != default[key]}
        if processing.schema is None:
            return kept
        return {**kept, "schema": self._schema(processing.schema, "processing.schema")}

    def _schema(self, schema: object, subject: str) -> Data:
        if isinstance(schema, Mapping):
            return dict(schema)
        return dict(structured.compile_schema(schema).json_schema)

    # --- agents

    def _agent(self, agent: object) -> str:
        if id(agent) not in self._names:
            name = self._free_name(agent)
            self._names[id(agent)] = name
            self._agents[name] = self._agent_data(agent, name)
        return self._names[id(agent)]

    def _free_name(self, agent: Any) -> str:
        wanted = agent.name if isinstance(agent.name, str) and agent.name.isidentifier() else "agent"
        tried = (wanted, *(f"{wanted}_{number}" for number in range(2, len(self._agents) + 3)))
        return next(each for each in tried if each not in self._agents)

    def _agent_data(self, agent: Any, name: str) -> Data:
        data: Data = {"model": self._model(agent)}
        prompts = [*getattr(agent, "_system_prompts", ()), *_instructions(agent)]
        if getattr(agent, "_system_prompt_functions", ()) or len(prompts) > 1 or list(_instructions(agent)):
            self._cannot("its agent has more than one fixed system prompt")
        elif prompts:
            data["system_prompt"] = prompts[0]
        schema = self._output_schema(agent)
        if schema is not None:
            data["output_schema"] = schema
        tools = [tool for toolset in agent.toolsets for tool in getattr(toolset, "tools", {}).values()]
        if tools:
            data["tools"] = [self._tool(each) for each in tools]
        data |= self._limits_of_agent(agent)
        return data if agent.name == name else {**data, "name": agent.name}

    def _tool(self, tool: Any) -> object:
        named = self._function(tool.function, "a tool of its agent")
        return {"uses": named, "requires_approval": True} if getattr(tool, "requires_approval", False) else named

    def _limits_of_agent(self, agent: Any) -> Data:
        data: Data = {}
        if agent.model_settings:
            data["model_settings"] = dict(agent.model_settings)
        if getattr(agent, "timeout_s", None) is not None:
            data["timeout_s"] = agent.timeout_s
        tools, output = (getattr(agent, f"_max_{what}_retries", 1) for what in ("tool", "output"))
        if tools != output:
            self._cannot("its agent has other `retries` for tools than for outputs")
        return data if tools == 1 else {**data, "retries": tools}

    def _model(self, agent: Any) -> object:
        model = agent.model
        if isinstance(model, str):
            return model
        if getattr(model, "model_name", None) == "test":
            return "test"
        kind = type(model).__name__
        self._cannot(f"the model of its agent is a {kind} object; give the agent the model's name as a text")
        return kind

    def _output_schema(self, agent: Any) -> Data | None:
        output = agent.output_type
        if output is str:
            return None
        if hasattr(output, "__get_pydantic_json_schema__") or inspect.isclass(output):
            return self._schema(_json_schema(output), "output_type")
        self._cannot(f"the output type {output!r:.60} of its agent is no JSON Schema")
        return None

    # --- options of every step

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
        if step.runs_on is not None:
            yield "runs_on", step.runs_on
        yield from self._undoing(step)
        self._only_python(step)

    def _undoing(self, step: Declared) -> Iterator[tuple[str, object]]:
        """Yield the compensation and the failure handlers of a step."""
        if step.compensate is not None:
            by = step.compensate.by if isinstance(step.compensate, Compensate) else None
            function = _function_of(by) if _is_plain(step.compensate) else None
            if function is None:
                self._cannot("its `compensate` is no plain function; a blueprint names one as package.module:name")
            else:
                yield "compensate", self._function(function, "its compensation")
        if len(step.on_failure) > 1:
            self._cannot("it has more than one failure handler; join them in one function or pipeline")
        elif step.on_failure:
            handler = step.on_failure[0]
            function = _function_of(handler)
            named = None if function is None else self._function(function, "its failure handler")
            yield "on_failure", self._sequence(handler) if named is None else named

    def _limits(self, limits: UsageLimits) -> Data:
        data = {name: value for name, value in _changed(limits).items() if name in LIMITS}
        others = [name for name in _changed(limits) if name not in LIMITS]
        if limits.window is None and limits.when_reached != "fail":
            others.append("when_reached")
        if others:
            self._cannot(f"{', '.join(others)} of its usage limits can only be declared in Python")
        return data

    def _config(self, step: Declared) -> Iterator[tuple[str, object]]:
        if step.max_retries:
            yield "max_retries", step.max_retries
        if step.timeout_s is not None:
            yield "timeout_s", step.timeout_s
        if step.backoff != Backoff():
            longest = {"longest_retry_after_s"} if step.backoff.longest_retry_after_s == 120 else set()
            yield "backoff", {name: value for name, value in attrs.asdict(step.backoff).items() if name not in longest}
        if step.retry_on is not None:
            yield "retry_on", [self._retry_rule(each) for each in step.retry_on]

    def _retry_rule(self, rule: RetryRule) -> int | str:
        if isinstance(rule, int):
            return rule
        name = getattr(rule, "__name__", "")
        if exception_named(name) is not rule:
            self._cannot(
                f"its retry_on holds {name_of(rule)!r}; a file names exceptions of Python, pydantic-ai or ours"
            )
        return str(name)

    def _around(self, step: Declared) -> Iterator[tuple[str, object]]:
        if step.validators:
            yield "validators", [self._function(each, "a validator") for each in step.validators]
        after = list(step.processors.after)
        own: Data = {}
        for kind, key, data in _OWN_PROCESSORS:
            if after and isinstance(after[-1], kind):
                own[key] = getattr(after.pop(), data)
        sides = {"before": list(step.processors.before), "after": after}
        named = {
            side: [self._function(each, "a processor") for each in given] for side, given in sides.items() if given
        }
        if named:
            yield "processors", named
        yield from own.items()

    def _function(self, function: Any, subject: str) -> str:
        if isinstance(function, functools.partial):
            self._cannot(f"{subject} is a partial; give the function a name of its own")
        elif inspect.ismethod(function):
            self._cannot(f"{subject} is a bound method")
        elif not isinstance(function, FunctionType | type) and not hasattr(function, "__qualname__"):
            self._cannot(f"{subject} is an object of {type(function).__name__}, which has no name of its own")
        elif function.__name__ == "<lambda>":
            self._cannot(f"{subject} is a lambda; give it a name")
        elif "<locals>" in function.__qualname__:
            self._cannot(f"{subject}, {function.__qualname__}, is defined inside a function")
        elif not is_python(f"{function.__module__}:{function.__qualname__}"):
            self._cannot(f"{subject}, {function.__module__}:{function.__qualname__}, has no public name")
        return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _is_plain(compensate: object) -> bool:
    """Return whether a compensation has no options of its own."""
    return isinstance(compensate, Compensate) and (compensate.when, compensate.if_it_fails) == ("started", "continue")


def _function_of(step: object) -> object:
    """Return the function of a plain function step, or None."""
    if not isinstance(step, Step) or not isinstance(step.agent, FunctionType):
        return None
    made = step_of(step.agent)
    same = all(
        getattr(step, each.name) == getattr(made, each.name) for each in attrs.fields(Step) if each.name != "agent"
    )
    return step.agent if same else None


def _plain_retrieval(source: FromRetrieval) -> FromRetrieval | None:
    """Return a search with the options that a blueprint has."""
    if source.query is not None and not isinstance(source.query, str):
        return None
    if any(callable(value) or isinstance(value, FromState) for value in source.filters.values()):
        return None
    return from_retrieval(source.collection, query=source.query, top_k=source.top_k, filters=source.filters)


def _option_data(option: Option) -> object:
    by_name = option.name if option.name in ("approve", "reject", "defer") else None
    more = {"kind": option.kind} if option.kind != by_name else {}
    data = {"label": option.label, "description": option.description}
    kept: Data = {**{name: text for name, text in data.items() if text}, **more}
    return kept if kept.keys() - {"label"} or not option.label else option.label


def _instructions(agent: object) -> list[object]:
    return list(getattr(agent, "_instructions", ()) or ())


def _json_schema(output: object) -> object:
    """Return the schema of a `StructuredDict`, or the class itself."""
    made = getattr(output, "__get_pydantic_json_schema__", None)
    if inspect.isclass(output) and issubclass(output, dict) and made is not None:
        return made(None, None)
    return output


def _changed(limits: UsageLimits) -> Data:
    """Return the limits that differ from their defaults."""
    given = {each.name: (getattr(limits, each.name), each.default) for each in attrs.fields(UsageLimits)}
    return {name: value for name, (value, usual) in given.items() if value != usual}


def _schedule_data(options: Mapping[str, object]) -> Data:
    return {name: value.isoformat() if isinstance(value, dt.datetime) else value for name, value in options.items()}


def _literal(text: str) -> str:
    """Return a literal text, escaped if it looks like a template."""
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
