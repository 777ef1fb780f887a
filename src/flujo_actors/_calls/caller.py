"""What a structured step needs of the agent behind it."""

from __future__ import annotations

from typing import Any, Protocol

from .._core.attempts import Attempt, Failed


class Caller(Protocol):
    """The agent behind a structured step."""

    async def ask(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """One call; an instruction is added to what the agent is told, and its answer may be wanted as text."""

    async def repair(self, prompt: str) -> Attempt:
        """One call of the bare model with nothing but the prompt; its output is text."""

    async def judge(self, value: Any) -> Attempt:
        """What the agent itself makes of a value that fits the schema: an output, or a failure that says why not."""

    @property
    def can_ask_again(self) -> bool:
        """Whether an instruction would reach the agent."""

    @property
    def validates(self) -> bool:
        """Whether the schema is the agent's own: an answer that is not text has been checked already."""

    @property
    def is_typed(self) -> bool:
        """Whether the agent declares a type for its answers: then they are never text, unless the step says so."""

    @property
    def can_repair(self) -> bool:
        """Whether there is a model to repair with."""

    @property
    def cut_off(self) -> bool:
        """Whether the last answer ended before its end, as far as the provider says."""

    def is_about_content(self, failed: Failed) -> bool:
        """Whether a failed call failed because of what the model wrote; `failed.output` is that text."""

    def settled(self, output: Any) -> None:
        """Hear what the answer came to: a value, or the text there was instead."""
