"""What functions of a pipeline may ask for besides data and context: `steps`, `item` and `run_input`.

Rules:

1. Scopes are lexical. A step sees the steps of its own sequence that settled before it, and those of the sequences
   around; nobody sees into a body, a branch or a sibling. Of two steps of one name the inner one is seen.
2. `steps` gives outputs: by name (`steps["classify"]`) or as an attribute (`steps.classify`).
3. Everybody gets a copy: what one function makes of an output, no other sees.
4. Nothing of this is stored. A run that is resumed replays the outputs of settled steps, and so fills its scopes again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs

from .._context.isolation import own
from .._core.near_names import nearest
from .._dsl.call_plan import asked_of_scope


class StepOutputs:
    """The outputs of settled steps in scope. It has no methods of its own: every attribute is a step's name."""

    __slots__ = ("_scope",)

    def __init__(self, scope: Scope) -> None:
        self._scope = scope

    def __getitem__(self, name: str) -> object:
        try:
            return own(self._scope.output(name))
        except LookupError:
            raise UnknownStep(_unknown(name, self)) from None

    def __getattr__(self, name: str) -> object:
        try:
            return own(self._scope.output(name))
        except LookupError:
            raise AttributeError(_unknown(name, self)) from None

    def __contains__(self, name: object) -> bool:
        return name in self._scope.names()

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope.names())

    def __len__(self) -> int:
        return len(self._scope.names())

    def __repr__(self) -> str:
        return f"StepOutputs({', '.join(self)})"


class UnknownStep(KeyError):
    """No step of this name has settled in the scope of whoever asks."""

    def __str__(self) -> str:
        return str(self.args[0])


def _unknown(name: object, steps: StepOutputs) -> str:
    known = list(steps)
    near = nearest(str(name), known)
    hint = f"did you mean {near!r}?" if near else f"there is {', '.join(map(repr, known)) or 'none yet'}"
    return f"no step {name!r} has settled before this one, in its own sequence or around it; {hint}"


@attrs.frozen(kw_only=True, eq=False)
class Scope:
    """What is in sight at one place of a run; see the module's rules."""

    run_input: object = None
    item: object = None
    """The item of the nearest map around; `None` outside of maps."""
    outer: Scope | None = None
    outputs: dict[str, Any] = attrs.field(factory=dict)
    """Of the steps of this sequence, as they settle."""

    @classmethod
    def of_run(cls, data: object) -> Scope:
        """The outermost scope of a run with this input, which others may change."""
        return cls(run_input=own(data))

    def inner(self) -> Scope:
        """The scope of a sequence inside."""
        return Scope(run_input=self.run_input, item=self.item, outer=self)

    def of_item(self, item: object) -> Scope:
        """The scope of one item of a map."""
        return Scope(run_input=self.run_input, item=own(item), outer=self)

    def settle(self, name: str, output: object) -> None:
        """Take note of a step's output, as it is now."""
        self.outputs[name] = own(output)

    def output(self, name: str) -> object:
        """The output of the step that is called so from here; `LookupError` if there is none."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.outputs:
                return scope.outputs[name]
            scope = scope.outer
        raise LookupError(name)

    def names(self) -> dict[str, None]:
        """The steps in sight, outer ones first."""
        around = {} if self.outer is None else self.outer.names()
        return {**around, **dict.fromkeys(self.outputs)}

    def asked_by(self, fn: Callable[..., object]) -> dict[str, object]:
        """What a function asks for by keyword."""
        asked = asked_of_scope(fn)
        offered: dict[str, Callable[[], object]] = {
            "steps": lambda: StepOutputs(self),
            "item": lambda: own(self.item),
            "run_input": lambda: own(self.run_input),
        }
        return {name: offered[name]() for name in asked}
