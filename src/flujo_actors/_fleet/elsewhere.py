"""The office of a run that is itself a remote step, or is looked at as one."""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from .._core.attempts import Attempt
from .._core.paths import StepPath
from .._dsl.kinds import MapOver
from .._run.messages import Request
from .._run.run import Office, Run


@attrs.frozen(kw_only=True, eq=False)
class Elsewhere:
    """An office for those steps of a remote step that are to be performed yet elsewhere."""

    office: Office
    here: frozenset[StepPath]

    def takes(self, request: Request) -> bool:
        """What this worker was asked for stays here."""
        return request.path not in self.here and self.office.takes(request)

    def spread(self, step: MapOver, requests: Iterator[Request]) -> tuple[Iterator[Request], int | None, int]:
        return self.office.spread(step, requests)

    async def attempt(self, run: Run, request: Request) -> Attempt:
        return await self.office.attempt(run, request)
