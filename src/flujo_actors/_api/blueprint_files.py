"""Blueprint files and their pipelines, with the settings of the nearest `flujo.toml`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import attrs

import flujo_actors

from .._blueprint.compiler import Compiler, limits_of, stricter
from .._blueprint.lint.linter import Linted, Linter
from .._blueprint.parser.analysis import refused
from .._blueprint.parser.findings import Finding
from .._blueprint.parser.project import Project, checked_entries, config_of, content_of
from .._core.usage import UsageLimits
from .._dsl.pipeline import Pipeline
from ..errors import BlueprintError


def lint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> list[Finding]:
    """Return a blueprint's findings: rule, severity, file, line, column and message.

    Nothing is imported, and nothing is written. `allow` extends the list of `flujo.toml`. An unreadable file raises
    `BlueprintError`.
    """
    return look_at(Path(path), project_of(Path(path), allow=allow)).findings


def load_blueprint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> Pipeline:
    """Return the pipeline of a blueprint; raise `BlueprintError` with `findings`.

    Python that it names is imported after it is valid, if `allow` or `flujo.toml` allow it: modules with their contents
    (`"shop"`), or one name (`"shop.agents:clerk"`). Its limits are capped by `[blueprints]` of `flujo.toml`.
    """
    file = Path(path)
    project = project_of(file, allow=allow)
    return pipeline_of(look_at(file, project), project)


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


def look_at(file: Path, project: Project, *, copy_schema: bool = False) -> Linted:
    """Lint a file."""
    return Linter(project, copy_schema=copy_schema).lint(str(file), read_file(file), file.resolve())


def read_file(file: Path) -> bytes:
    """Return the bytes of a blueprint, or raise `BlueprintError`."""
    try:
        return content_of(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BlueprintError(f"{file} cannot be read: {reason}") from error


def project_of(
    file: Path | None, *, allow: Iterable[str] = (), config: Path | None = None, resolve: bool = False
) -> Project:
    """Return a file's project: `--config`, nearest `flujo.toml`, and the caller."""
    directory = Path.cwd() if file is None else file.resolve().parent
    found = config or config_of(directory)
    allowed = checked_entries(allow)
    if found is None:
        return Project(root=directory, allow=allowed, resolve=resolve)
    configured = _configured(found.resolve())
    return attrs.evolve(configured, allow=(*configured.allow, *allowed), resolve=resolve)


def _configured(file: Path) -> Project:
    """Return the blueprint options of a configuration file and the environment."""
    settings = flujo_actors.load_settings(file=file)
    return Project(
        root=file.parent,
        allow=checked_entries(settings.blueprints.allow),
        path=settings.blueprints.path,
        ignore=settings.lint.ignore,
        error=settings.lint.error,
        warning=settings.lint.warning,
        total_cost_usd_limit=settings.blueprints.total_cost_usd_limit,
        total_tokens_limit=_whole(settings.blueprints.total_tokens_limit),
    )


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)
