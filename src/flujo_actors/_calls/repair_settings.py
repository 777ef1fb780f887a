"""Which stages one attempt of a structured step may go through: the settings, its switches and its agent together."""

from __future__ import annotations

from .._core.settings import ArosSettings
from .._dsl.processing import Processing
from ..structured._stages import RepairSettings
from .caller import Caller


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
