"""What a structured step needs of the agent behind it, and which stages it may go through with that agent."""

from __future__ import annotations

from typing import Protocol

from .._core.attempts import Attempt, Failed
from .._core.settings import ArosSettings
from .._dsl.processing import Processing
from ..structured._stages import RepairSettings


class Caller(Protocol):
    """The agent behind a structured step."""

    async def ask(self, instruction: str | None, *, as_text: bool = False) -> Attempt:
        """One call; an instruction is added to what the agent is told, and its answer may be wanted as text."""

    async def repair(self, prompt: str) -> Attempt:
        """One call of the bare model with nothing but the prompt; its output is text."""

    async def judge(self, value: object) -> Attempt:
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

    def settled(self, output: object) -> None:
        """Hear what the answer came to: a value, or the text there was instead."""


def repair_settings(aros: ArosSettings, switches: Processing, caller: Caller, *, last_resort: bool) -> RepairSettings:
    """The stages that are open; plain text only where nothing else is left and the step asks for it."""
    return RepairSettings(
        enforcement="validate" if switches.enforcement == "validate" else "repair",
        max_attempts=aros.repair.max_attempts,
        enable_llm=aros.repair.enable_llm and caller.can_repair,
        max_stages=aros.fallback.max_stages,
        enable_extractor=aros.fallback.enable_extractor,
        degrade_to_string=aros.fallback.degrade_to_string and last_resort and _asks_for_text(switches, caller),
        degrade_on_unexpected_behavior=aros.degrade_on_unexpected_behavior,
        schema_simplify=aros.schema_simplify,
    )


def _asks_for_text(switches: Processing, caller: Caller) -> bool:
    """Whether text is better than nothing: the step says so, or its agent returns text anyway."""
    return not caller.is_typed if switches.degrade is None else switches.degrade
