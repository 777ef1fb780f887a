"""The public functions of blueprints, for everybody who imports the package: what they need is an extra.

They are here without it, and say which one is missing when they are called.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING

from .errors import DeclarationError

if TYPE_CHECKING:
    from ._blueprint.findings import Finding
    from ._dsl.pipeline import Pipeline

_OF_THE_EXTRA = ("jinja2", "yaml")


def lint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> list[Finding]:
    """What there is to say of a blueprint: findings with `rule`, `severity`, `file`, `line`, `column` and `message`.

    Nothing is imported, and nothing is written. `allow` adds to what `flujo.toml` allows. A file that cannot be read is
    a `BlueprintError`.
    """
    found: list[Finding] = _loaded("._blueprints").lint(path, allow=allow)
    return found


def load_blueprint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> Pipeline:
    """The pipeline of a blueprint; `BlueprintError` with `findings` if it has errors.

    Python that it names is imported after it is valid, and only what `allow` and `flujo.toml` allow: modules with all
    below them (`"shop"`), or one name (`"shop.agents:clerk"`). It may spend what it says, and not more than
    `[blueprints]` of `flujo.toml` says.
    """
    pipeline: Pipeline = _loaded("._blueprint_loading").load_blueprint(path, allow=allow)
    return pipeline


def dump_blueprint(pipeline: Pipeline) -> str:
    """The text of a blueprint that says what the pipeline says; `NotExportable` if none can.

    `load_blueprint` of the text has the same fingerprint.
    """
    text: str = _loaded("._blueprint.export").dump_blueprint(pipeline)
    return text


def _loaded(module: str) -> ModuleType:
    try:
        return importlib.import_module(module, __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        raise DeclarationError(f"blueprints need an extra: pip install flujo-actors[blueprints] ({error})") from error
