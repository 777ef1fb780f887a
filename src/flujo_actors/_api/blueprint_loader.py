"""Loader from a blueprint to an executable pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import flujo_actors

from .._blueprint.compiler import Compiler, limits_of, stricter
from .._blueprint.lint.linter import Linted
from .._blueprint.parser.analysis import refused
from .._blueprint.parser.project import Project
from .._core.usage import UsageLimits
from .._dsl.pipeline import Pipeline
from .blueprint_files import lint_file, project_of


def load_blueprint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> Pipeline:
    """Return the pipeline of a blueprint; raise `BlueprintError` with `findings`.

    Python that it names is imported after it is valid, if `allow` or `flujo.toml` allow it: modules with their contents
    (`"shop"`), or one name (`"shop.agents:clerk"`). Its limits are capped by `[blueprints]` of `flujo.toml`.
    """
    file = Path(path)
    project = project_of(file, allow=allow)
    return pipeline_of(lint_file(file, project), project)


def pipeline_of(linted: Linted, project: Project) -> Pipeline:
    """Return the pipeline of a linted file."""
    if linted.model is None or linted.refusals:
        raise refused(linted.source.file, linted.refusals or linted.findings)
    declared = limits_of(linted.model.entries.get("usage_limits"))
    allowed = UsageLimits(project.total_cost_usd_limit, project.total_tokens_limit)
    limits = stricter(declared, None if allowed == UsageLimits() else allowed)
    return Compiler(project, _make_agent).pipeline(linted.model, limits=limits)


def _make_agent(model: str, *, schema: Mapping[str, object] | None, system_prompt: str, **options: Any) -> Any:
    """Return a model agent; its library is loaded with the first one."""
    from pydantic_ai import StructuredDict

    output: Any = str if schema is None else StructuredDict(dict(schema), name=str(schema.get("title", "answer")))
    return flujo_actors.make_agent_async(model, system_prompt or (), output_type=output, **options)
