"""Durable runs: journal, leases and fencing, pauses, compatibility of changed code.

A name of this table is loaded with the first answer that needs it.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.records.run_state import forget_turns as forget_turns
    from .operations.webhooks import aborted_messages as aborted_messages
    from .operations.webhooks import deferred_messages as deferred_messages
    from .pause_lookup import checked_answer as checked_answer
    from .pause_lookup import next_token as next_token
    from .pause_lookup import requested_again as requested_again
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "forget_turns": ".._core.records.run_state",
            "aborted_messages": ".operations.webhooks",
            "deferred_messages": ".operations.webhooks",
            "requested_again": ".pause_lookup",
            "checked_answer": ".pause_lookup",
            "next_token": ".pause_lookup",
        },
    )
