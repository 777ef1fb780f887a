"""From a blueprint to a pipeline that runs: what is loaded only by those who run one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from ._blueprint.compiling import Compiler, limits_of, stricter
from ._blueprint.linting import Linted
from ._blueprint.project import Project
from ._blueprint.refusing import refused
from ._blueprints import look_at, project_of
from ._core.usage import UsageLimits
from ._dsl.pipeline import Pipeline


def load_blueprint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> Pipeline:
    """The pipeline of a blueprint; `BlueprintError` with `findings` if it has errors.

    Python that it names is imported after it is valid, and only what `allow` and `flujo.toml` allow: modules with all
    below them (`"shop"`), or one name (`"shop.agents:clerk"`). It may spend what it says, and not more than
    `[blueprints]` of `flujo.toml` says.
    """
    file = Path(path)
    project = project_of(file, allow=allow)
    return pipeline_of(look_at(file, project), project)


def pipeline_of(linted: Linted, project: Project) -> Pipeline:
    """The pipeline of a file that was looked at."""
    if linted.model is None or linted.refusals:
        raise refused(linted.source.file, linted.refusals or linted.findings)
    said = limits_of(linted.model.entries.get("usage_limits"))
    allowed = UsageLimits(project.total_cost_usd_limit, project.total_tokens_limit)
    limits = stricter(said, None if allowed == UsageLimits() else allowed)
    return Compiler(project, _make_agent).pipeline(linted.model, limits=limits)


def _make_agent(model: str, *, schema: Mapping[str, object] | None, system_prompt: str, **options: Any) -> Any:
    """A model agent; the library behind it is loaded with the first one."""
    from pydantic_ai import StructuredDict

    from ._agents.factory import make_agent_async

    output: Any = str if schema is None else StructuredDict(dict(schema), name=str(schema.get("title", "answer")))
    return make_agent_async(model, system_prompt or (), output_type=output, **options)
