"""Declarations: frozen values that any number of concurrent runs can share.

A name of this table is loaded with the first declaration that needs it.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._agents.agent_options import checked_options as checked_options
    from .._agents.agent_options import has_tools as has_tools
    from .._agents.agent_options import toolset_to_connect as toolset_to_connect
    from .compensation_options import as_compensate as as_compensate
    from .compensation_options import attached_steps as attached_steps
    from .compensation_options import check_tools as check_tools
    from .compensation_options import handlers_of as handlers_of
    from .context_sources import check_sources as check_sources
    from .context_sources import sources_of as sources_of
    from .context_sources import sources_text as sources_text
    from .declaration_tree import coalesced_steps as coalesced_steps
    from .declaration_tree import walk_steps as walk_steps
    from .kinds import BranchOn as BranchOn
    from .kinds import HumanInTheLoop as HumanInTheLoop
    from .kinds import LoopUntil as LoopUntil
    from .kinds import MapOver as MapOver
    from .kinds import Parallel as Parallel
    from .kinds import SequenceOf as SequenceOf
    from .kinds import refuse_compacted_loops as refuse_compacted_loops
    from .output_options import check_cache as check_cache
    from .pipeline import as_step as as_step
    from .pipeline import chain as chain
    from .pipeline import step_of as step_of
    from .selection_step import SelectAgent as SelectAgent
    from .selection_step import as_review as as_review
    from .selection_step import check_confidence as check_confidence
    from .step_declaration import Step as Step
    from .wait_steps import Approval as Approval
    from .wait_steps import Sleep as Sleep
    from .wait_steps import WaitFor as WaitFor
    from .wait_steps import reader_of as reader_of
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Approval": ".wait_steps",
            "BranchOn": ".kinds",
            "HumanInTheLoop": ".kinds",
            "LoopUntil": ".kinds",
            "MapOver": ".kinds",
            "Parallel": ".kinds",
            "SelectAgent": ".selection_step",
            "SequenceOf": ".kinds",
            "Sleep": ".wait_steps",
            "Step": ".step_declaration",
            "WaitFor": ".wait_steps",
            "as_compensate": ".compensation_options",
            "as_review": ".selection_step",
            "as_step": ".pipeline",
            "attached_steps": ".compensation_options",
            "chain": ".pipeline",
            "check_cache": ".output_options",
            "check_sources": ".context_sources",
            "check_confidence": ".selection_step",
            "check_tools": ".compensation_options",
            "checked_options": ".._agents.agent_options",
            "has_tools": ".._agents.agent_options",
            "toolset_to_connect": ".._agents.agent_options",
            "coalesced_steps": ".declaration_tree",
            "handlers_of": ".compensation_options",
            "reader_of": ".wait_steps",
            "sources_of": ".context_sources",
            "sources_text": ".context_sources",
            "refuse_compacted_loops": ".kinds",
            "step_of": ".pipeline",
            "walk_steps": ".declaration_tree",
        },
    )
