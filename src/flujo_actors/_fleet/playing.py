"""The worker's side of remote steps: performs them with the very actors that would have performed them at home.

Rules:

1. A remote step is played under its own lease, and writes to its own run; its paths and keys are the root's.
2. How a single step ended, and that the remote run has ended, are one commit.
3. What it asks is asked in its own run; whoever waits for it asks the same in theirs.
4. One that is put to rest keeps what it has done; one that is cancelled for good ends as aborted.
5. What ends the whole run (a control error) is passed on by name.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs
import trio

from .._core import record_bodies
from .._core.attempts import Stopped, escalating
from .._core.deliveries import poisonous
from .._core.outcomes import Aborted, Failure, Paused, RunId, TerminalOutcome
from .._core.usage import NO_USAGE, Usage
from .._dsl.tree import find_step
from .._run.messages import Around, Request
from .._run.outlet import Outlet
from .._run.run import Office, Run
from .._tree.step import StepActors
from ..errors import ControlError, FingerprintMismatch
from .asking import Asked, AskedItem, outlet_of, quota_of
from .budget_book import drawn_on
from .carrying import in_trace, set_carried
from .elsewhere import Elsewhere
from .errands import ENDED, PARKED, control_data
from .remote_runs import RemoteJournal, RemoteRuns
from .signals import signal_of
from .streaming import Speaker, ears_of

if TYPE_CHECKING:
    from .._bridge.host import Host
    from .._core.quota import Amount, Quota
    from .._core.records import TakenRun
    from .._core.settings import FleetSettings
    from .._durable.runs import OpenRun
    from .._durable.stored_runs import StoredRuns
    from .signals import Signals

MakeRun = Callable[..., Run]
"""A run of this worker's `Flujo`, of that id, with that journal."""


class KnownSizes:
    """How large the calls of limited runs are that this worker makes: only the first of a caller is guessed at.

    Near a limit, what is guessed at goes one at a time.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[RunId, dict[str, Amount]] = OrderedDict()

    def of(self, run: RunId) -> dict[str, Amount]:
        """The sizes by caller of one run; the remote steps of it that are played here share it."""
        known = self._of.setdefault(run, {})
        self._of.move_to_end(run)
        if len(self._of) > _RUNS_KNOWN:
            self._of.popitem(last=False)
        return known


_RUNS_KNOWN = 1000
"""Of how many runs a worker remembers how large their calls are."""


@attrs.frozen(kw_only=True, eq=False)
class RemotePlayer:
    """Plays remote steps for one worker."""

    runs: StoredRuns
    version: str
    make_run: MakeRun
    office: Callable[[], Office | None]
    settings: FleetSettings
    signals: Signals | None
    carry: tuple[ContextVar[object], ...]
    guess: Amount
    """What a first call is reckoned at, where usage is limited."""
    _sizes: KnownSizes = attrs.field(factory=lambda: KnownSizes(), init=False)

    async def play(self, child: RunId, host: Host, *, new: TakenRun | None = None) -> None:
        """Claim a remote step, unless that was done, and perform it, from wherever its last worker left it."""
        ours = self.runs
        runs = RemoteRuns(
            store=ours.store,
            pipeline=ours.pipeline,
            settings=ours.settings,
            redact=ours.redact,
            mode=ours.mode,
            version=self.version,
        )
        opened = await runs.take(child) if new is None else await runs.open_new(new)
        asked, journal = runs.asked, opened.journal
        assert asked is not None
        assert isinstance(journal, RemoteJournal)
        try:
            with runs.holding(opened) as hold:
                assert hold.halt is not None
                played = await hold.halt.unless_told(functools.partial(self._played, opened, asked, journal, host))
                await _put_to_rest(journal, played)
            hold.check()
        finally:
            await runs.put_back(opened)
            self._tell(asked, child)

    def _tell(self, asked: Asked, child: RunId) -> None:
        if self.signals is not None and asked.reply is not None:
            self.signals.send(asked.reply, signal_of(ENDED, child), about=child)

    async def _played(self, opened: OpenRun, asked: Asked, journal: RemoteJournal, host: Host) -> list[TerminalOutcome]:
        why = poisonous(opened.deaths, max_deliveries=self.settings.max_deliveries)
        if why is not None:
            await journal.end("failed", feedback=why)
            return []
        set_carried(self.carry, asked.carried)
        with in_trace(asked.trace):
            requests = [self._request(asked, item) for item in asked.items]
            await drawn_on(self.runs.store, asked.run, journal, requests)
            journal.top = requests[0].path if len(requests) == 1 else None
            async with self._told(opened, asked, journal.lease.epoch) as outlet:
                return await _all_played(self._run(opened, asked, host, outlet), requests)

    @contextlib.asynccontextmanager
    async def _told(self, opened: OpenRun, asked: Asked, epoch: int) -> AsyncIterator[Outlet | None]:
        """Where the steps say what they do, if somebody listens; all of it is sent when the block is left."""
        if self.signals is None or asked.reply is None or asked.streams is None:
            yield None
            return
        outlet = outlet_of(asked.streams, self.runs.pipeline)
        speaker = Speaker(self.signals, asked.reply, opened.run_id, epoch, ears_of(self.signals.url))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(speaker.pass_on, outlet)
            yield outlet
            outlet.close()

    def _run(self, opened: OpenRun, asked: Asked, host: Host, outlet: Outlet | None) -> Run:
        office = self.office()
        here = frozenset(item.path for item in asked.items)
        away = None if office is None else Elsewhere(office=office, here=here)
        return self.make_run(opened, host, root=asked.run, outlet=outlet, office=away)

    def _quotas(self, asked: Asked, item: AskedItem) -> tuple[Quota, ...]:
        known = self._sizes.of(asked.run) if item.limits else {}
        return tuple(quota_of(data, guess=self.guess, known=known) for data in item.limits)

    def _request(self, asked: Asked, item: AskedItem) -> Request:
        step = find_step(self.runs.pipeline, item.path)
        if step is None:
            raise FingerprintMismatch(f"there is no step at {item.path!r} of this worker's pipeline")
        return Request(
            step=step,
            name=item.name,
            path=item.path,
            parent=None,
            data=item.data,
            context=asked.context,
            around=Around(quotas=self._quotas(asked, item), scope=item.scope),
        )


async def _all_played(run: Run, requests: list[Request]) -> list[TerminalOutcome]:
    """How the steps ended, all at once; those that ended in an earlier part of the remote run are not done again."""
    outcomes: list[TerminalOutcome] = []
    actors = StepActors(run)

    async def play(request: Request) -> None:
        recorded = run.journal.recall(request.path) if run.resumed else None
        outcomes.append(await actors.play(request) if recorded is None else recorded.outcome)

    if len(requests) == 1:
        await play(requests[0])
        return outcomes
    async with trio.open_nursery() as nursery:
        for request in requests:
            nursery.start_soon(play, request)
    return outcomes


async def _put_to_rest(journal: RemoteJournal, played: list[TerminalOutcome] | Stopped) -> None:
    """Write down that the remote run has come to rest, unless that was written with its step."""
    if journal.at_rest:
        return
    if isinstance(played, Stopped):
        assert isinstance(played.outcome, Aborted)
        if played.outcome.reason == PARKED:
            await journal.park()
        else:
            await journal.end("aborted", feedback=played.outcome.reason)
        return
    control = next((error for each in played if (error := _control_in(each)) is not None), None)
    used = sum((_used_by(each) for each in played), NO_USAGE)
    aborted = next((each for each in played if isinstance(each, Aborted)), None)
    if control is not None:
        spent = record_bodies.usage_data(used)
        await journal.end("failed", feedback=str(control), control=control_data(control), usage=spent)
    elif aborted is not None:
        await journal.end("aborted", feedback=aborted.reason)
    elif any(isinstance(each, Paused) for each in played):
        await journal.end("paused")
    else:
        await journal.end("completed")


def _used_by(outcome: TerminalOutcome) -> Usage:
    """What a step had used that was ended by a control error, and so has no record of its own."""
    if not isinstance(outcome, Failure) or outcome.step_result is None or _control_in(outcome) is None:
        return NO_USAGE
    return outcome.step_result.usage


def _control_in(outcome: TerminalOutcome) -> BaseException | None:
    error = escalating(outcome.error) if isinstance(outcome, Failure) else None
    return error if isinstance(error, ControlError) else None
