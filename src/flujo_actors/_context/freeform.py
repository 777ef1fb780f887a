"""`Context`: what steps share when no `context_model` is declared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from .._type_registry import register_former_name, register_type


@register_type
class Context:
    """Values by attribute: `context.notes = []`. Any name that is an identifier will do."""

    __module__ = "flujo_actors"  # it is stored under its public name, wherever it is defined

    def __init__(self, /, **values: object) -> None:
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
        """The value called `name`, or `default`."""
        return vars(self).get(name, default)

    def __flujo_data__(self) -> dict[str, object]:
        """What is stored of a context."""
        return dict(vars(self))

    def __getstate__(self) -> dict[str, object]:
        return vars(self)

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)


register_former_name("flujo_actors.context.freeform.Context", Context)
