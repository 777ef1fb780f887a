"""Unsupported keys of the predecessor language, each with its replacement (V-K3)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "statemachine": "use a loop around a conditional, with the state in the context",
        "dynamic_router": "use a conditional whose condition names a function of yours",
        "cache": "let the function of the step cache its results",
        "agentic_loop": "give an agent `tools`, with `granular: true` if it must survive a crash",
        "tree_search": "use a loop around parallel branches, or a function of yours",
    }
)
"""Kinds of steps, in lower case."""

_MAPPERS = "give the first step of the body an `input`, and the loop an `output_template`"
_CONTEXT_KEYS = "branches see the whole context; select the merge with `merge_strategy`"

KEYS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "blueprint": {
            "static_invariants": "use `validators` of the steps",
            "invariants": "use `validators` of the steps",
        },
        "step": {
            "plugins": "use `validators` and `processors`",
            "invariants": "use `validators`",
            "static_invariants": "use `validators`",
            "validate_fields": "give `context` a `schema`",
            "output_schema": "write it as `processing: {schema: …}`",
            "input_schema": "only a question (`kind: hitl`) has one; check data with `processors: {before: […]}`",
            "context_include_keys": _CONTEXT_KEYS,
            "field_mapping": _CONTEXT_KEYS,
            "ignore_branch_names": "use `merge_strategy: no_merge` or a branch without `updates_context`",
            "init": "use `context: {initial: …}`, or a step before the loop with `sink_to`",
            "finalize": "use a step behind it",
            "state": "use `sink_to` in the steps of the body",
            "propagation": "the last turn's output feeds the next one",
            "conversation": "use `granular: true`, or keep the messages in the context",
            "history_management": "use `granular: {keep_last: …}`",
            "history_template": "use a template over `context` in `input`",
            "ai_turn_source": "use `granular: true`, or keep the messages in the context",
            "user_turn_sources": "use `granular: true`, or keep the messages in the context",
            "named_steps": "every step can be named in `steps.<name>.output`",
            "initial_input_to_loop_body_mapper": _MAPPERS,
            "iteration_input_mapper": _MAPPERS,
            "loop_output_mapper": _MAPPERS,
            "output": "use `output_template`",
            "stop_when": "use `exit_expression`",
            "start_state": KINDS["statemachine"],
            "end_states": KINDS["statemachine"],
            "states": KINDS["statemachine"],
            "transitions": KINDS["statemachine"],
        },
        "processing": {
            "aop": "structured output is repaired by default; `enforcement` sets the level",
            "coercion": "values are coerced to their schema where nothing is lost",
            "enforce_grammar": "use `structured_output: openai_json`",
            "reasoning_precheck": "use a step before this one",
        },
        "config": {
            "temperature": "write it into `model_settings` of the agent",
            "max_tokens": "write it into `model_settings` of the agent",
            "top_p": "write it into `model_settings` of the agent",
            "model": "write it into the agent",
        },
        "agent": {
            "temperature": "write it into `model_settings`",
            "max_tokens": "write it into `model_settings`",
            "plugins": "use `tools`",
        },
    }
)
"""Unsupported keys by group; steps of all kinds use `step`."""

WORDS: Mapping[tuple[str, str], Mapping[str, str]] = MappingProxyType(
    {
        ("processing", "structured_output"): {
            "outlines": "use `openai_json`, or `auto`",
            "xgrammar": "use `openai_json`, or `auto`",
        },
        ("parallel", "reduce"): {
            "majority_vote": "vote in a step behind it, with a function of yours",
            "vote": "vote in a step behind it, with a function of yours",
            "judge": "let an agent judge in a step behind it",
            "best": "choose in a step behind it",
        },
    }
)
"""Words that a key could have, by group and key."""

_SINK = "use `sink_to` and `updates_context`"
_ASK = "use `kind: hitl`"

BUILTINS: Mapping[str, str] = MappingProxyType(
    {
        "ask_user": _ASK,
        "check_user_confirmation": _ASK,
        "context_set": _SINK,
        "context_merge": _SINK,
        "context_get": "use a template: `{{ context.key }}`",
        "http_get": "use a function of yours, `uses: package.module:name`",
        "web_search": "give an agent a tool",
        "fs_write_file": "use a function of yours, `uses: package.module:name`",
        "extract_yaml_text": "give the agent an `output_schema`",
        "capture_artifact": _SINK,
        "get_from_context": "use a template: `{{ context.key }}`",
        "flatten": "use a template, or a function of yours",
        "to_csv": "use a function of yours",
        "aggregate": "use a template with `sum`, or a function of yours",
        "select_fields": "use a template with `map(attribute=…)`, or a function of yours",
        "render_jinja_template": "use `builtins.passthrough` with a template as its `input`",
    }
)
"""Functions that came with it."""

ANYWAY: Mapping[str, tuple[object, str]] = MappingProxyType(
    {
        "inherit_context": (True, "an import shares the context"),
        "propagate_hitl": (True, "a question of an import pauses the run"),
        "on_failure": ("abort", "a failed import fails its step; use `fallback` for anything else"),
        "input_to": ("initial_prompt", "an import receives the step's input; use `input`"),
    }
)
"""Redundant import options; other values are refused with the reason."""
