"""`Context`: shared state without a declared `context_model`."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from ..._core.type_registry import register_former_name, register_type


def _declared_defaults(cls: type) -> dict[str, object]:
    """Return a subclass's fields with values, and mutable class attributes."""
    annotations = inspect.get_annotations(cls)
    fields = [name for name, kind in annotations.items() if "ClassVar" not in str(kind)]
    shared = [name for name, value in vars(cls).items() if type(value) in (list, dict, set)]
    own = [name for name in dict.fromkeys([*fields, *shared]) if not name.startswith("_") and name in vars(cls)]
    constant = {name for name in annotations if name not in fields}
    return {name: vars(cls)[name] for name in own if name not in constant}


@register_type
class Context:
    """Values by attribute: `context.notes = []`. Any identifier is a valid name.

    Args:
        values: fields and their values.

    Example:
        ```python
        def count(text: str, *, context: Context) -> str:
            context.words = len(text.split())
            return text

        assert Flujo(Step("count", count)).run("a b c").final_context.words == 3
        ```
    """

    __module__ = "flujo_actors"  # it is stored under its public name, wherever it is defined

    _defaults: ClassVar[Mapping[str, object]] = MappingProxyType({})

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._defaults = {**cls._defaults, **_declared_defaults(cls)}

    def __init__(self, /, **values: object) -> None:
        if self._defaults:
            values = {**copy.deepcopy(dict(self._defaults)), **values}
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the context has no {name!r}; it has {sorted(vars(self)) or 'nothing yet'}")

    def __contains__(self, name: object) -> bool:
        return name in vars(self)

    def __iter__(self) -> Iterator[str]:
        return iter(vars(self))

    def __len__(self) -> int:
        return len(vars(self))

    def __eq__(self, other: object) -> bool:
        return vars(self) == vars(other) if isinstance(other, Context) else NotImplemented

    __hash__: ClassVar[None]  # type: ignore[assignment]  # it changes, so it has none

    def __repr__(self) -> str:
        return f"Context({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value called `name`, or `default`.

        Args:
            name: name of the field.
            default: value of a field that is not set.
        """
        return vars(self).get(name, default)

    def __flujo_data__(self) -> dict[str, object]:
        """Return the stored values of a context."""
        return dict(vars(self))

    def __getstate__(self) -> dict[str, object]:
        return vars(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)


register_former_name("flujo_actors.context.freeform.Context", Context)
