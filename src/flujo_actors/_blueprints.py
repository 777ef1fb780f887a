"""Blueprints for whoever has a file: looked at with the settings of the nearest `flujo.toml`."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import attrs

from ._blueprint.allowing import checked_entries
from ._blueprint.findings import Finding
from ._blueprint.linting import Linted, Linter
from ._blueprint.project import Project, config_of, content_of
from ._core.settings import Settings
from ._settings import load_settings
from .errors import BlueprintError


def lint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> list[Finding]:
    """What there is to say of a blueprint: findings with `rule`, `severity`, `file`, `line`, `column` and `message`.

    Nothing is imported, and nothing is written. `allow` adds to what `flujo.toml` allows. A file that cannot be read is
    a `BlueprintError`.
    """
    return look_at(Path(path), project_of(Path(path), allow=allow)).findings


def look_at(file: Path, project: Project, *, copy_schema: bool = False) -> Linted:
    """What there is to say of a file."""
    return Linter(project, copy_schema=copy_schema).lint(str(file), read_file(file), file.resolve())


def read_file(file: Path) -> bytes:
    """The bytes of a blueprint; `BlueprintError` if there is none to be read."""
    try:
        return content_of(file)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise BlueprintError(f"{file} cannot be read: {reason}") from error


def project_of(
    file: Path | None, *, allow: Iterable[str] = (), config: Path | None = None, resolve: bool = False
) -> Project:
    """What a file may name and read: from `--config`, or the nearest `flujo.toml`, and the caller."""
    directory = Path.cwd() if file is None else file.resolve().parent
    found = config or config_of(directory)
    settings = load_settings(file=found) if found is not None else load_settings(environ={})
    return attrs.evolve(_project(settings, allow), root=found.resolve().parent if found else directory, resolve=resolve)


def _project(settings: Settings, allow: Iterable[str]) -> Project:
    return Project(
        root=Path(),
        allow=(*checked_entries(settings.blueprints.allow), *checked_entries(allow)),
        path=settings.blueprints.path,
        ignore=settings.lint.ignore,
        error=settings.lint.error,
        warning=settings.lint.warning,
    )
