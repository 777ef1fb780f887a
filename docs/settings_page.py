"""Writes `settings.md` from the typed settings: `make docs`.

The keys, defaults and meanings are those of `flujo_actors._core.settings_model`; the text around them is
`INTRODUCTION`.
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from flujo_actors._api.cli.file_replacement import replace_file
from flujo_actors._core import settings_model as declared

PAGE = Path(__file__).with_name("settings.md")

INTRODUCTION = """# Settings

<!-- Written by docs/settings_page.py from the typed settings: change those, and run `make docs`. -->

A `Flujo` works without any of these. They are read and checked when it is made, and stay as they are for all its runs.

## Which source wins

Key by key, from the strongest to the weakest:

| source | written as |
|---|---|
| a finished `Settings(…)` in code | `Flujo(…, settings=Settings(durability={"lease_s": 60}))`: nothing else is read |
| a dict in code | `Flujo(…, settings={"durability.lease_s": 60})`, or nested: `{"durability": {"lease_s": 60}}` |
| the environment | `FLUJO_DURABILITY__LEASE_S=60`: capitals, levels joined by two underscores |
| the file: that of `FLUJO_CONFIG`, else `./flujo.toml` | `[durability]` and below it `lease_s = 60` |
| the defaults | below |

```python
from flujo_actors import Flujo, Settings, Step, load_settings

step = Step("double", lambda number: 2 * number)
Flujo(step, settings={"durability.lease_s": 60, "telemetry": {"log": True}})
Flujo(step, settings=Settings(sync_step_threads=8))
print(load_settings().durability.lease_s)  # from the environment and the file
```

- An unknown key in code or in a file is a `DeclarationError` that names the nearest one; so is a value of the wrong
  kind, and NaN or an infinity wherever a number is asked for.
- An unknown `FLUJO_…` variable is no error: a Kubernetes service called "flujo" puts `FLUJO_PORT` and others into
  every pod. One that is near a setting, and looks like no service's, is a Python warning with the name that was meant.
- **The owner of the current directory owns `flujo.toml`**, and with it prices (so cost limits) and `telemetry.content`
  (so privacy). A program that starts in directories of others names its file in `FLUJO_CONFIG`, or sets
  fixed values in code: code wins. A `Settings(…)` reads neither file nor environment.
- Parts of one `Flujo` are arguments, not settings: `usage_limits`, `store`, `hooks`, `resources`.
"""

HEAD = "| key | default | |\n|---|---|---|\n"


def page() -> str:
    """The whole page."""
    return INTRODUCTION + "".join(_sections(declared.Settings, ""))


def _sections(cls: type[Any], path: str) -> Iterator[str]:
    """The table of a class, and those of the classes inside it."""
    fields = attrs.fields(attrs.resolve_types(cls))
    values = [field for field in fields if not attrs.has(field.type or object)]
    if values:
        yield f"\n## {_title(cls, path)}\n\n{HEAD}"
        yield from (_row(cls, field, path) for field in values)
    if cls is declared.UsageSettings:
        yield from _prices(path)
    for field in fields:
        if field not in values:
            yield from _sections(field.type, f"{path}{field.name}.")


def _prices(path: str) -> Iterator[str]:
    """Prices are tables by the name of a model."""
    yield f'\nA price is a table `[{path}prices."model name"]`, in dollars per million tokens:\n\n{HEAD}'
    yield from (_row(declared.Price, field, "") for field in attrs.fields(attrs.resolve_types(declared.Price)))


def _title(cls: type[Any], path: str) -> str:
    said = (cls.__doc__ or "").strip().splitlines()[0].rstrip(".")
    return f"At the top: {said[0].lower()}{said[1:]}" if not path else said


def _row(cls: type[Any], field: attrs.Attribute[Any], path: str) -> str:
    return f"| `{path}{field.name}` | {_default(field)} | {_meanings(cls)[field.name]} |\n"


def _default(field: attrs.Attribute[Any]) -> str:
    if field.default is attrs.NOTHING:
        return "needed"
    default = field.default.factory() if isinstance(field.default, attrs.Factory) else field.default
    if default in ((), {}, None):
        return "none"
    if isinstance(default, tuple):
        return f"`{json.dumps(default)}`"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"


def _meanings(cls: type[Any]) -> dict[str, str]:
    """The docstring below each field of the class."""
    (body,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: inspect.cleandoc(str(text.value.value))
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }


if __name__ == "__main__":
    replace_file(PAGE, page())
