"""One run: what its actors share."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs
import trio

from ..bridge.host import Host
from ..core.events import Event
from ..core.ledger import Ledger
from ..core.outcomes import RunId, StepOutcome
from ..core.paths import StepPath
from ..core.quota import Amount, Quota
from ..core.settings import Settings
from ..core.usage import UsageLimits
from ..telemetry.sinks import Telemetry
from .hooks import Hooks
from .journal import Journal
from .mailbox import Mailbox
from .messages import Untold


@attrs.frozen(kw_only=True, eq=False)
class Run:
    """The parts of a run that every actor may use. Whoever does not use one does not pay for it."""

    run_id: RunId
    host: Host
    journal: Journal
    hooks: Hooks
    telemetry: Telemetry
    resumed: bool = False
    """Whether this is a later part of a run, so that its steps may have records, answers and failed attempts."""
    outlet: Mailbox[StepOutcome] | None = None
    """Where somebody watches the run; `None` if nobody does."""
    resources: Any = None
    settings: Settings = attrs.field(factory=Settings)
    rng: Callable[[], float] = random.random
    ledger: Ledger = attrs.field(factory=Ledger)
    untold: deque[Untold] = attrs.field(factory=deque)
    """How steps that were cut short ended, for somebody to tell."""

    quiet: bool = attrs.field(init=False)
    """Whether nobody is told what steps do, and none was done before: then a step can take the short way."""

    @quiet.default
    def _is_quiet(self) -> bool:
        return not (self.resumed or self.hooks or self.telemetry.enabled)

    def emit(self, kind: type[Any], path: StepPath, **facts: Any) -> None:
        """Tell telemetry, if anybody listens."""
        if self.telemetry.enabled:
            event: Event = kind(run_id=self.run_id, path=path, at=trio.current_time(), **facts)
            self.telemetry.emit(event)

    def quota(self, limits: UsageLimits, *, owner: str) -> Quota:
        """A budget under this run's settings."""
        usage = self.settings.usage
        guess = Amount(tokens=usage.first_call_tokens, cost_usd=usage.first_call_usd)
        return Quota(limits, owner=owner, guess=guess)

    def redact(self, text: str) -> str:
        """The text without secrets: the only change ever made to what an error says."""
        return self.telemetry.redactor.text(text)

    async def publish(self, outcome: StepOutcome) -> None:
        """Show an outcome to whoever watches, waiting until there is room for it."""
        if self.outlet is not None:
            await self.outlet.put(outcome)
