"""Pure policies: selection, votes, loop detection, approvals, shared budgets.

A name of this table is loaded with the first declaration or answer that needs it.
"""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .approval_policy import raised_by as raised_by
    from .loop_detection import LoopGuard as LoopGuard
    from .rate_limits import checked_limits as checked_limits
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "LoopGuard": ".loop_detection",
            "raised_by": ".approval_policy",
            "checked_limits": ".rate_limits",
        },
    )
