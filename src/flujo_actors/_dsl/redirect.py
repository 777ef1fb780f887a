"""What a validator returns to hand the work to another agent."""

from __future__ import annotations

from typing import Any

import attrs

from .call_plan import plan_agent


@attrs.frozen(kw_only=True, eq=False)
class Redirect:
    """Let `to` have the next attempt, with `feedback` on what was wrong; it does not use up a retry.

    An agent gets one turn by redirection: going in a circle raises `InfiniteRedirectError`.
    """

    to: Any
    feedback: str = "the validator asked for another agent"

    def __attrs_post_init__(self) -> None:
        plan_agent(self.to, step_name="after a redirect")  # what cannot be called is refused where it is named
