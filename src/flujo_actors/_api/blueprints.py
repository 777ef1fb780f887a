"""Public blueprint functions, importable without their extra.

A call without it names the missing extra.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING

from ..errors import DeclarationError

if TYPE_CHECKING:
    from .._blueprint.parser.findings import Finding
    from .._dsl.pipeline import Pipeline, StepLike

_OF_THE_EXTRA = ("jinja2", "yaml")


def lint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> list[Finding]:
    """Return a blueprint's findings: rule, severity, file, line, column and message.

    Nothing is imported, and nothing is written. An unreadable file raises `BlueprintError`.

    Args:
        path: file of the blueprint.
        allow: modules or names that it may import, in addition to `flujo.toml`.
    """
    found: list[Finding] = _loaded(".blueprint_files").lint(path, allow=allow)
    return found


def load_blueprint(path: str | PathLike[str], *, allow: Iterable[str] = ()) -> Pipeline:
    """Return the pipeline of a blueprint.

    Python that it names is imported after it is valid. Its limits are capped by `[blueprints]` of `flujo.toml`.

    Args:
        path: path of the YAML file.
        allow: modules (`"shop"`) or names (`"shop.agents:clerk"`) that it may import, in addition to `flujo.toml`.

    Raises:
        BlueprintError: the file is not valid; `findings` has rule and location of each problem.

    Example:
        ```python
        Path("hello.yaml").write_text('steps: [{name: greet, uses: builtins.passthrough, input: "Hello, {{ input }}"}]')
        assert Flujo(load_blueprint("hello.yaml")).run("Ada").output == "Hello, Ada"
        ```
    """
    pipeline: Pipeline = _loaded(".blueprint_loader").load_blueprint(path, allow=allow)
    return pipeline


def dump_blueprint(pipeline: StepLike) -> str:
    """Return the blueprint text of the pipeline, or raise `NotExportable`.

    `load_blueprint` of the text has the same fingerprint.

    Args:
        pipeline: pipeline, or a single step.
    """
    text: str = _loaded(".._blueprint.export").dump_blueprint(pipeline)
    return text


def _loaded(module: str) -> ModuleType:
    try:
        return importlib.import_module(module, __package__)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _OF_THE_EXTRA:
            raise
        raise DeclarationError(f"blueprints need an extra: pip install 'flujo-actors[blueprints]' ({error})") from error
