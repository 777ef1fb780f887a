"""Calls: one call of a step's agent, model requests, context assembly.

A name of this table is loaded with the first step or error that needs it.
"""

from typing import TYPE_CHECKING

from ..._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from ..._agents.provider_errors import is_about_content as is_about_content
    from ..._agents.provider_errors import own_refusal as own_refusal
    from ..._agents.provider_errors import text_of_error as text_of_error
    from .agent_call import plain_attempt as plain_attempt
    from .aggregator import Aggregator as Aggregator
    from .context_assembly import assembled_for as assembled_for
    from .context_assembly import noted as noted
    from .conversations import Conversations as Conversations
    from .message_history import remembered as remembered
    from .model_call import call_model_agent as call_model_agent
    from .stored_conversations import conversation_for as conversation_for
    from .structured_call import structured_attempt as structured_attempt
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Aggregator": ".aggregator",
            "Conversations": ".conversations",
            "assembled_for": ".context_assembly",
            "call_model_agent": ".model_call",
            "conversation_for": ".stored_conversations",
            "is_about_content": "..._agents.provider_errors",
            "plain_attempt": ".agent_call",
            "noted": ".context_assembly",
            "own_refusal": "..._agents.provider_errors",
            "remembered": ".message_history",
            "structured_attempt": ".structured_call",
            "text_of_error": "..._agents.provider_errors",
        },
    )
