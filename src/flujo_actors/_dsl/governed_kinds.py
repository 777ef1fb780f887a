"""How the kinds of steps are made that govern others: approvals and selections. `Step` has them as its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # each is loaded with the first of its kind
    from .._core.approvals import Option
    from .approvals import Approval, OnTimeout
    from .pipeline import StepLike
    from .selections import Reward, SelectAgent


class GovernedKinds:
    """The makers of these kinds."""

    __slots__ = ()

    @staticmethod
    def approval(
        name: str,
        message: str | Callable[..., str],
        options: Mapping[str, str | Option] | Iterable[Option] | None = None,
        *,
        to: str | None = None,
        timeout_s: float | None = None,
        on_timeout: OnTimeout | StepLike = "fail",
        on_rejection: StepLike | None = None,
        max_deferrals: int = 3,
        metadata: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> Approval[Any, Any]:
        """Pauses the run until somebody decides, or their time is over; what is approved passes on."""
        from .approvals import Approval

        return Approval(
            name,
            message,
            options=options,
            to=to,
            deadline_s=timeout_s,
            on_timeout=on_timeout,
            on_rejection=on_rejection,
            max_deferrals=max_deferrals,
            metadata=metadata or {},
            **config,
        )

    @staticmethod
    def select_agent(
        name: str,
        arms: Mapping[str, object],
        by: object = None,
        *,
        category: Callable[..., object] | None = None,
        reward: Reward = None,
        beliefs: str | None = None,
        **config: Any,
    ) -> SelectAgent[Any, Any]:
        """One of several agents, steps or pipelines, chosen by what is known of them; Thompson sampling by default."""
        from .._core.selection import ThompsonSampling
        from .selections import SelectAgent

        rule = ThompsonSampling() if by is None else by
        return SelectAgent(name, arms, by=rule, category=category, reward=reward, beliefs=beliefs, **config)
