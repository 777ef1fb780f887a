"""Blueprint files with the settings of the nearest `flujo.toml`."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import attrs

import flujo_actors

from .._blueprint.lint.linter import Linted, Linter
from .._blueprint.parser.findings import Finding
from .._blueprint.parser.project import Project, checked_entries, config_of, content_of
from ..errors import BlueprintError


def lint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> list[Finding]:
    """Return a blueprint's findings: rule, severity, file, line, column and message.

    Nothing is imported, and nothing is written. `allow` extends the list of `flujo.toml`. An unreadable file raises
    `BlueprintError`.
    """
    return lint_file(Path(path), project_of(Path(path), allow=allow)).findings


def lint_file(file: Path, project: Project, *, copy_schema: bool = False) -> Linted:
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
