"""Structured output: model text to schema-valid value. Pure."""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from ._builtins import BUILTINS as BUILTINS
    from ._builtins import WrapDict as WrapDict
    from ._builtins import ensure_object as ensure_object
    from ._builtins import wrap_dict as wrap_dict
    from ._compiled_schema import Schema as Schema
    from ._compiled_schema import compile_schema as compile_schema
    from ._extract import extract_from_text as extract_from_text
    from ._read_result import DEFAULT_LIMITS as DEFAULT_LIMITS
    from ._read_result import Coercion as Coercion
    from ._read_result import Flaw as Flaw
    from ._read_result import Limits as Limits
    from ._read_result import ReadResult as ReadResult
    from ._reader import normalize_json_text as normalize_json_text
    from ._reader import parse_and_validate as parse_and_validate
    from ._reader import read_structured as read_structured
    from ._stages import STRICT_INSTRUCTION as STRICT_INSTRUCTION
    from ._stages import Decision as Decision
    from ._stages import Degrade as Degrade
    from ._stages import Deterministic as Deterministic
    from ._stages import Extract as Extract
    from ._stages import GiveUp as GiveUp
    from ._stages import LlmRepair as LlmRepair
    from ._stages import RepairPlanSettings as RepairPlanSettings
    from ._stages import Simplified as Simplified
    from ._stages import SimplifiedSchema as SimplifiedSchema
    from ._stages import Slot as Slot
    from ._stages import Stage as Stage
    from ._stages import StageFailure as StageFailure
    from ._stages import StrictRetry as StrictRetry
    from ._stages import plan_next as plan_next
    from ._stages import repair_prompt as repair_prompt
    from ._stages import simplified_instruction as simplified_instruction
    from ._stages import simplify as simplify
    from ._stages import stage_of as stage_of
    from ._stages import strict_instruction as strict_instruction
    from ._stream import Preview as Preview
    from ._stream import StreamBuffer as StreamBuffer
    from ._stream import partial_value as partial_value

    Reading = ReadResult
    RepairSettings = RepairPlanSettings
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "BUILTINS": "._builtins",
            "Coercion": "._read_result",
            "DEFAULT_LIMITS": "._read_result",
            "Decision": "._stages",
            "Degrade": "._stages",
            "Deterministic": "._stages",
            "Extract": "._stages",
            "Flaw": "._read_result",
            "GiveUp": "._stages",
            "Limits": "._read_result",
            "LlmRepair": "._stages",
            "Preview": "._stream",
            "ReadResult": "._read_result",
            "Reading": "._read_result:ReadResult",
            "RepairPlanSettings": "._stages",
            "RepairSettings": "._stages:RepairPlanSettings",
            "STRICT_INSTRUCTION": "._stages",
            "Schema": "._compiled_schema",
            "Simplified": "._stages",
            "SimplifiedSchema": "._stages",
            "Slot": "._stages",
            "Stage": "._stages",
            "StageFailure": "._stages",
            "StreamBuffer": "._stream",
            "StrictRetry": "._stages",
            "WrapDict": "._builtins",
            "compile_schema": "._compiled_schema",
            "ensure_object": "._builtins",
            "extract_from_text": "._extract",
            "normalize_json_text": "._reader",
            "parse_and_validate": "._reader",
            "partial_value": "._stream",
            "plan_next": "._stages",
            "read_structured": "._reader",
            "repair_prompt": "._stages",
            "simplified_instruction": "._stages",
            "simplify": "._stages",
            "stage_of": "._stages",
            "strict_instruction": "._stages",
            "wrap_dict": "._builtins",
        },
    )
