"""`AgentStep`: a step as a class with prompt, context and result.

`step(name)` makes a plain `Step` of it, with processors for the prompt and the result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ..errors import DeclarationError
from .call_plan import accepts
from .context_sources import ContextSources, Source
from .declared_step import Processors
from .step_declaration import Step


class AgentStep:
    """Prompt, context sources and result handling of an agent. Subclass it.

    - `agent`: a pydantic-ai agent, or a function that takes `assembled`;
    - `context_sources`: as those of a step;
    - `user_prompt(data, context)`: the prompt of the agent; by default the data;
    - `apply(output, *, context, assembled)`: the output of the step, called with the keywords that it names. A dict or
      a model is merged into the context, unless the step has `updates_context=False`.
    """

    agent: ClassVar[Any] = None
    """Agent of the step."""
    context_sources: ClassVar[ContextSources | Iterable[Source] | None] = None
    """Sources of the prompt."""

    def user_prompt(self, data: Any, context: Any) -> Any:
        """Return the prompt of the agent.

        Args:
            data: data of the step.
            context: context of the run.
        """
        return data

    def apply(self, output: Any) -> Any:
        """Return the output of the step.

        Args:
            output: output of the agent.
        """
        return output

    def step(self, name: str, **options: Any) -> Step:
        """Return the step of that name; further options are those of `Step`.

        Args:
            name: name of the step.
            options: options of `Step`.
        """
        if "processors" in options:
            raise DeclarationError(f"step {name!r}: an AgentStep has user_prompt and apply in place of processors")
        applies = type(self).apply is not AgentStep.apply
        options.setdefault("updates_context", applies)
        if self.context_sources is not None:
            options.setdefault("context_sources", self.context_sources)
        prompt = _Prompt(self) if type(self).user_prompt is not AgentStep.user_prompt else None
        processors = Processors(before=() if prompt is None else (prompt,), after=(self.apply,) if applies else ())
        return Step(name, self._agent(), processors=processors, **options)

    def _agent(self) -> object:
        """Return the agent; a function in the class body stays a function."""
        agent = vars(type(self)).get("agent", type(self).agent)
        return agent.__func__ if isinstance(agent, staticmethod) else agent


class _Prompt:
    """`user_prompt`, as a processor."""

    def __init__(self, whose: AgentStep) -> None:
        self._ask, self.__name__ = whose.user_prompt, "user_prompt"
        self._named = accepts(whose.user_prompt, "context")

    def __call__(self, data: object, *, context: object) -> object:
        return self._ask(data, context=context) if self._named else self._ask(data, context)
