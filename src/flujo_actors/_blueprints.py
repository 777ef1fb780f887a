"""Blueprints for whoever has a file: looked at with the settings of the nearest `flujo.toml`."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from os import PathLike
from pathlib import Path

import attrs

from ._blueprint.allowing import checked_entries
from ._blueprint.findings import Finding
from ._blueprint.linting import Linted, Linter
from ._blueprint.project import Project, config_of, content_of
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
    allowed = checked_entries(allow)
    if found is None:
        return Project(root=directory, allow=allowed, resolve=resolve)
    configured = _configured(found.resolve(), found.stat().st_mtime_ns if found.is_file() else 0)
    return attrs.evolve(configured, allow=(*configured.allow, *allowed), resolve=resolve)


@functools.lru_cache(maxsize=1)  # a hundred files have one configuration
def _configured(file: Path, changed_at: int) -> Project:
    """What a configuration file says of blueprints, as it was when it was last changed."""
    from ._settings import load_settings  # the classes of all settings, for those who have a file

    settings = load_settings(file=file)
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
