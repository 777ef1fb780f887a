"""World of one simulated history: store, effects, models and events.

Rules:

1. Store, effects and events survive a crash; everything else is made anew by the factory.
2. Every store write, effect and model call is an opportunity for a fault.
3. After a crash nothing of that life reaches the store, the effects or the models.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, TypeVar, cast

import anyio
import attrs

from .._api.client import RunClient
from .._core.outcomes import PipelineResult, RunId
from .._core.policies.shared_budgets import BudgetClaim, BudgetSnapshot
from .._core.quota import Amount, amount_of, is_reached
from .._core.records import record_bodies
from .._core.records.records import Admission, Append, ClaimedRun, Lease, Record, StoredRun, has_ended
from .._core.step_paths import StepPath, at_or_below, known_outside, step_of, within_of
from .._core.usage import NO_USAGE, Usage, UsageLimits
from ..errors import DeclarationError, FlujoError, LeaseLost, RunExists, RunNotFound, StoreError
from ..stores._memory_store import MemoryStore
from ..stores._store_port import Verdict
from ._simulated_process import ProcessCrashed, SimulatedProcess
from .faults import FaultKind, Place

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from .._dsl.pipeline import Pipeline

T = TypeVar("T")

RUN_ID = RunId("r")
"""Id of the simulated run."""

MODEL_DELAY_S = (0.0, 0.5)
"""Duration of a simulated model call."""

_path: ContextVar[str] = ContextVar("flujo_actors simulated path", default="")
"""Step or unit whose code runs."""

_caller: ContextVar[tuple[str, StepPath]] = ContextVar("flujo_actors simulated caller", default=("", StepPath("")))
"""Run and step whose code runs."""


# --- Fault plan of one history ------------------------------------------------------------------------------------
# Rules:
#
# 1. An opportunity is known by its label and its number among opportunities of that label. So a plan can be replayed
#    without one of its faults: later faults keep their places.
# 2. A plan without recorded faults decides by chance; a replayed one injects the recorded faults only.
# 3. At most `MOST` faults per history, and none while the plan is calm. A cancellation is injected once.


MOST = 20
"""Maximum number of faults per history."""

Opportunity: TypeAlias = tuple[str, int]
"""Label of a place, and its number among places of that label."""


@attrs.frozen
class InjectedFault:
    """Fault of a history."""

    name: str
    at: Opportunity
    when: str = ""
    """`before` or `after`, for faults that have both."""
    seconds: float = 0.0

    def __str__(self) -> str:
        """Return the fault as the timeline shows it."""
        if self.seconds:
            return f"{self.name} {self.seconds:.1f} s"
        return f"{self.name} {self.when}" if self.name == "crash" else self.name


@attrs.define(eq=False)
class FaultPlan:
    """Faults of one history; see the module's rules."""

    faults: Sequence[FaultKind]
    rng: random.Random
    replayed: Mapping[Opportunity, InjectedFault] | None = None
    calm: bool = False
    injected: list[InjectedFault] = attrs.field(factory=list, init=False)
    _places: dict[Place, list[FaultKind]] = attrs.field(factory=dict, init=False)
    _seen: Counter[str] = attrs.field(factory=Counter, init=False)
    _once: set[str] = attrs.field(factory=set, init=False)

    def at(self, place: Place, label: str) -> InjectedFault | None:
        """Return the fault of this opportunity, if any."""
        self._seen[label] += 1
        where = label, self._seen[label]
        found = self._decided(place, where) if self.replayed is None else self.replayed.get(where)
        if found is not None and not self.calm:
            self.injected.append(found)
            return found
        return None

    def _decided(self, place: Place, where: Opportunity) -> InjectedFault | None:
        chance = self.rng.random()
        if self.calm or len(self.injected) >= MOST:
            return None
        for fault in self._at_place(place):
            if chance < fault.p:
                return self._made(fault, where)
            chance -= fault.p
        return None

    def _at_place(self, place: Place) -> list[FaultKind]:
        if place not in self._places:
            self._places[place] = [fault for fault in self.faults if place in fault.places]
        return self._places[place]

    def _made(self, fault: FaultKind, where: Opportunity) -> InjectedFault | None:
        if fault.name == "cancel":
            if fault.name in self._once:
                return None
            self._once.add(fault.name)
        seconds = 0.0 if fault.seconds is None else self.rng.uniform(*fault.seconds)
        return InjectedFault(fault.name, where, self.rng.choice(("before", "after")), round(seconds, 3))


# --- World of one history -----------------------------------------------------------------------------------------


@attrs.define
class CommittedUsage:
    """Usage of model calls whose record is committed."""

    requests: int = 0
    tokens: int = 0
    cost_usd: float = 0.0

    def add(self, other: CommittedUsage) -> None:
        self.requests, self.tokens = self.requests + other.requests, self.tokens + other.tokens
        self.cost_usd += other.cost_usd

    def reached(self, limits: UsageLimits) -> str | None:
        """Return the limit that it has reached, if any."""
        if limits.request_limit is not None and self.requests >= limits.request_limit:
            return f"{self.requests} of {limits.request_limit} requests"
        if is_reached(limits, Amount(tokens=self.tokens, cost_usd=self.cost_usd)):
            tokens, cost = limits.total_tokens_limit, limits.total_cost_usd_limit
            if tokens is not None and self.tokens >= tokens:
                return f"{self.tokens} of {tokens} tokens"
            return f"${self.cost_usd:.6g} of ${cost:.6g}"
        return None


def exceeded(limits: UsageLimits | None, usage: Usage) -> str | None:
    """Return the count that exceeds its limit, if any."""
    if not _fails(limits):
        return None
    used = amount_of(usage)
    for limit, count, unit in (
        (limits.request_limit, used.requests, "requests"),
        (limits.tool_calls_limit, used.tool_calls, "tool calls"),
        (limits.step_limit, used.steps, "steps of agents"),
    ):
        if limit is not None and count > limit:
            return f"{count} {unit}, although the limit is {limit}"
    return None


class CommittedCalls:
    """Calls of user code and their committed records, over all lives."""

    def __init__(self) -> None:
        self._epochs: dict[str, int] = {}
        self._done: set[str] = set()
        self._keys: dict[str, str] = {}
        self._names: dict[str, str] = {}

    def grant(self, lease: Lease) -> None:
        """Note a granted lease."""
        self._epochs[lease.run_id] = max(self._epochs.get(lease.run_id, 0), lease.epoch)

    def commit(self, lease: Lease, record: Record) -> str | None:
        """Note an accepted record; return the broken rule, if any."""
        granted, name = self._epochs.get(lease.run_id, 0), f"{lease.run_id}:{record.path}"
        if lease.epoch < granted:
            return (
                f"(e) record {record.kind} {record.path!r} of epoch {lease.epoch} was accepted, although epoch "
                f"{granted} was granted"
            )
        if record.kind == "intent" and name in self._done:
            return f"(b) unit {record.path!r} is executed again, although its record is committed"
        if record.kind in ("settled", "unit"):
            self._done.add(name)
        return None

    def call(self, name: str, key: str | None) -> str | None:
        """Note a call; return the broken rule, if any."""
        if name in self._done:
            return f"(b) step {name.partition(':')[2]!r} is called again, although its record is committed"
        if key is None:
            return None
        place = known_outside(StepPath(name))
        if self._keys.setdefault(place, key) != key:
            return f"(c) {place.partition(':')[2]!r} is called again with another idempotency key: {key!r}"
        if self._names.setdefault(key, place) != place:
            return f"(c) {place.partition(':')[2]!r} has the idempotency key of {self._names[key]!r}: {key!r}"
        return None

    def forget(self, run_id: str) -> None:
        """Permit calls of a run again, after a retry."""
        self._done = {name for name in self._done if not name.startswith(f"{run_id}:")}
        self._keys, self._names = {}, {}


@attrs.frozen
class Effect:
    """Effect of the outside world, which survives crashes."""

    name: str
    key: str | None
    life: int
    facts: dict[str, object]


@attrs.frozen
class HistoryEvent:
    """One thing that happened in a history."""

    life: int
    at: float
    kind: str
    text: str
    fault: str = ""
    digest: str = ""
    """Digest of the record bodies, for the trace."""

    def __str__(self) -> str:
        """Return its line of the timeline."""
        line = f"life {self.life}  {self.at:.3f} s  {self.kind}  {self.text}".rstrip()
        return f"{line}  << {self.fault}" if self.fault else line


class World:
    """Outside world of a simulated process."""

    def __init__(self, seed: object, plan: FaultPlan, process: SimulatedProcess) -> None:
        self.process: SimulatedProcess = process
        self.plan: FaultPlan = plan
        self.seed: object = seed
        """Seed of the history."""
        self.life: int = 0
        """Number of the present life, from 1."""
        self.rng: random.Random = random.Random()
        """Random numbers for user code, by the seed."""
        self.effects: list[Effect] = []
        self.events: list[HistoryEvent] = []
        self.result: PipelineResult | None = None
        """Result of the run, once it has ended or rests."""
        self.store: MemoryStore = SimulatedStore(self)
        self.pipeline: Pipeline | None = None
        """Pipeline of the latest life."""
        self.answer_names: set[str] = set()
        """Names under which questions were answered."""
        self.crashes: int = 0
        self.violation: str | None = None
        """Broken rule, noted while the history runs."""
        self.error: Exception | None = None
        """Exception of user code that broke the history."""
        self.calls: CommittedCalls = CommittedCalls()
        self.uses_models: bool = False
        self.used: dict[str, CommittedUsage] = defaultdict(CommittedUsage)
        """Committed usage by run."""
        self.used_by: dict[str, dict[StepPath, CommittedUsage]] = defaultdict(lambda: defaultdict(CommittedUsage))
        """Committed usage by run and step."""
        self.limits: UsageLimits | None = None
        """Limits of each run."""
        self.limits_of: Callable[[StepPath], UsageLimits | None] = lambda path: None
        """Limits of each step."""
        self._uncommitted: dict[str, CommittedUsage] = {}
        self._delays = random.Random(f"{seed}/delays")
        self._outside = 0
        process.slow, process.events = self._slow, lambda: len(self.events)

    @property
    def now(self) -> float:
        """Return simulated seconds since the beginning of the history."""
        return self.process.now

    def records(self, run_id: str = RUN_ID) -> Sequence[Record]:
        """Return the records of a run; none of an unknown one."""
        try:
            return MemoryStore.read(self.store, RunId(run_id))
        except RunNotFound:
            return []

    def begin_life(self) -> None:
        """Begin the next life, without the uncommitted usage of the former."""
        self.life += 1
        self.process.begin_life(self.life)
        self.rng.seed(f"{self.seed}/world/{self.life}")
        self._uncommitted.clear()

    # --- for user code ---

    def effect(self, name: str, key: str | None = None, **facts: object) -> None:
        """Note an effect of the outside world, with crashes around it.

        Args:
            name: name of the effect.
            key: idempotency key.
            facts: further facts of the effect.
        """
        self.call(
            functools.partial(self.effects.append, Effect(name, key, self.life, facts)), name=f"{name} {facts or ''}"
        )

    def call(self, fn: Callable[[], T], *, name: str | None = None) -> T:
        """Call a service of the outside world, with crashes around it.

        Args:
            fn: function with an effect.
            name: name in the history; by default that of the function.
        """
        self.require_life()
        text = (name or str(getattr(fn, "__name__", "service"))).strip()
        fault = self._opportunity("effect", text)
        self.note("effect" if name else "call", text, fault)
        self._before(fault, RUN_ID)
        answer = fn()
        if inspect.iscoroutine(answer):
            return cast("T", self._awaited(answer, fault))
        self._after(fault)
        return answer

    async def _awaited(self, answer: Coroutine[Any, Any, object], fault: InjectedFault | None) -> object:
        """Return the answer of an async service, with the crash after it."""
        got = await answer
        self.require_life()
        self._after(fault)
        return got

    async def sleep(self, seconds: float) -> None:
        """Wait on the simulated clock, on trio or asyncio.

        Args:
            seconds: simulated seconds.
        """
        self.require_life()
        await anyio.sleep(seconds)
        self.require_life()

    def model(self, *replies: object) -> Model:
        """Return a scripted model, whose nth reply answers the nth turn.

        A reply is one of `scripted_model`, or a callable on the messages and `rng` that returns one. The last reply is
        repeated. Model faults apply to every request.

        Args:
            replies: replies of the scripted model, in order.
        """
        if not replies:
            raise DeclarationError("world.model needs at least one reply")
        from ._scripted_model import WorldModel  # loads pydantic-ai, which only model agents need

        self.uses_models = True
        return WorldModel(self, replies)

    # --- events ---

    def note(self, kind: str, text: str, fault: InjectedFault | None = None, digest: str = "") -> None:
        """Add an event to the history.

        Args:
            kind: kind of the event.
            text: description of the event.
            fault: injected fault, if any.
            digest: hash of the written data.
        """
        shown = "" if fault is None else str(fault)
        self.events.append(HistoryEvent(self.life, round(self.now, 6), kind, text, shown, digest))

    def violate(self, reason: str) -> None:
        """Note a broken rule, and end the life."""
        if self.violation is None:
            self.violation = reason
            self.note("broken rule", reason)
        self.process.kill()
        raise ProcessCrashed

    def require_life(self) -> None:
        """Raise `ProcessCrashed` if the present life is over."""
        if self.process.dead and not self._outside:
            raise ProcessCrashed

    @contextlib.contextmanager
    def outside(self) -> Iterator[RunClient]:
        """Act as another process: without faults, and after a crash."""
        self._outside += 1
        try:
            yield RunClient(self.store, allow_blocking=True)
        finally:
            self._outside -= 1

    # --- faults ---

    def _opportunity(self, place: Place, label: str) -> InjectedFault | None:
        return None if self._outside or self.process.dead else self.plan.at(place, label)

    def _before(self, fault: InjectedFault | None, run_id: RunId) -> None:
        match fault:
            case InjectedFault(name="crash", when="before"):
                self.crash()
            case InjectedFault(name="clock_jump", seconds=seconds):
                self.process.wall_offset += seconds
            case InjectedFault(name="cancel"):
                self._cancel(run_id)
            case InjectedFault(name="lease_lost"):
                self._claim_elsewhere(run_id)
            case InjectedFault(name="store_fails"):
                raise StoreError("the store fails, as simulated")
            case _:
                pass

    def _after(self, fault: InjectedFault | None) -> None:
        match fault:
            case InjectedFault(name="crash", when="after"):
                self.crash()
            case InjectedFault(name="ack_lost"):
                raise StoreError("the reply of the store was lost, as simulated")
            case _:
                pass

    def crash(self) -> None:
        """End the present life here."""
        self.crashes += 1
        self.process.kill()
        raise ProcessCrashed

    def _cancel(self, run_id: RunId) -> None:
        with self.outside() as client, contextlib.suppress(FlujoError):
            client.cancel(run_id, "cancelled, as simulated")
            self.note("cancel", repr(run_id))

    def _claim_elsewhere(self, run_id: RunId) -> None:
        """Claim the run as another process, which then does nothing."""
        with self.outside(), contextlib.suppress(FlujoError):
            run = self.store.get(run_id)
            if run.owner is not None and not has_ended(run.status):
                self.store.take_over(run_id, dead=run.owner, owner="simulated:0:other:::", lease_s=self.process.lease_s)

    def _slow(self) -> tuple[float, bool]:
        fault = self._opportunity("call", "store call")
        if fault is None:
            return 0.0, False
        self.note("store call", "", fault)
        return fault.seconds, fault.when == "before"

    # --- store ---

    def written(self, name: str, run_id: RunId, what: str, call: Callable[[], T], digest: str = "") -> T:
        """Write to the store, with the fault of this opportunity."""
        self.require_life()
        fault = self._opportunity("write", f"{name} {what}")
        if name != "renew" or fault is not None:
            self.note(name, what, fault, digest)
        self._before(fault, run_id)
        answer = call()
        self._after(fault)
        return answer

    def committed(self, append: Append) -> None:
        """Note the records of an accepted append, and check them."""
        for record in append.records:
            reason = self.calls.commit(append.lease, record)
            if record.kind in ("settled", "unit"):
                reason = reason or self._spent(append.lease.run_id, record)
            if reason is not None:
                self.violate(reason)

    def _spent(self, run_id: RunId, record: Record) -> str | None:
        """Note the usage of a record; return the exceeded limit, if any."""
        spent = self._uncommitted.pop(_name_of(run_id, record), None)
        limits = None if record.kind == "unit" else self.limits_of(record.path)
        recorded = NO_USAGE if spent is None and limits is None else _usage_of(record)
        if spent is not None:
            spent.cost_usd = recorded.cost_usd
            self.used[run_id].add(spent)
            self.used_by[run_id][step_of(record.path)].add(spent)
        found = exceeded(limits, recorded)
        return None if found is None else f"(g) step {record.path!r} has used {found}"

    # --- calls of user code ---

    def called(self, run_id: str, path: str, key: str | None = None) -> None:
        """Note a call of a step or a unit, and check it."""
        self.require_life()
        name = f"{run_id}:{path}" if run_id else path
        _path.set(name)
        if run_id:
            _caller.set((run_id, StepPath(path)))
        self.note("start", repr(path) if run_id else repr(path.partition(":")[2]))
        reason = self.calls.call(name, key)
        if reason is not None:
            self.violate(reason)

    def asked(self, tokens: int) -> None:
        """Note the usage of a model call."""
        self._uncommitted.setdefault(_path.get(), CommittedUsage()).add(CommittedUsage(1, tokens))

    def request(self, turn: int) -> InjectedFault | None:
        """Note a model request; return its fault, after a crash before it."""
        self.require_life()
        text = f"turn {turn + 1} of {_path.get().partition(':')[2]!r}"
        fault = self._opportunity("model", text)
        self.note("model", text, fault)
        self._check_limits()
        self._before(fault, RUN_ID)
        return fault

    def _check_limits(self) -> None:
        """Check the limits around a request that begins."""
        run_id, path = _caller.get()
        used, limits = self.used.get(run_id), self.limits
        reached = None if used is None or not _fails(limits) else used.reached(limits)
        if reached is not None:
            self.violate(f"(g) a model request begins after {reached} were recorded")
        for step in (path, *within_of(path)):
            limits = self.limits_of(step)
            reached = self._used_at(run_id, step).reached(limits) if _fails(limits) else None
            if reached is not None:
                self.violate(f"(g) a model request begins after {reached} of step {step!r} were recorded")

    def _used_at(self, run_id: str, step: StepPath) -> CommittedUsage:
        total, known = CommittedUsage(), self.used_by[run_id]
        for path in at_or_below(step, known):
            total.add(known[path])
        return total

    def answering(self, path: str) -> InjectedFault | None:
        """Note that a question is answered; return the fault of the answer."""
        fault = self._opportunity("answer", f"answer {path!r}")
        self.note("answering", repr(path), fault)
        return fault

    def model_delay_s(self) -> float:
        """Return the duration of the next model call."""
        return round(self._delays.uniform(*MODEL_DELAY_S), 3)

    def answered(self, fault: InjectedFault | None) -> None:
        """Crash after a model call, if its fault says so."""
        self.require_life()
        self._after(fault)


class SimulatedStore(MemoryStore):
    """Store in memory on simulated clocks, with faults."""

    def __init__(self, world: World) -> None:
        super().__init__(clock=_LeaseClock(world.process), wall=world.process.time)
        self._world = world

    def admit_all(
        self, admissions: Sequence[Admission], *, owner: str | None, lease_s: float
    ) -> list[Lease | RunExists]:
        run_ids = [admission.run_id for admission in admissions]
        digest = _digest(admission.body for admission in admissions)
        call = functools.partial(super().admit_all, admissions, owner=owner, lease_s=lease_s)
        answers = self._world.written("admit", run_ids[0], ", ".join(map(repr, run_ids)), call, digest)
        for answer in answers:
            if isinstance(answer, Lease):
                self._world.calls.grant(answer)
        return answers

    def append(self, batch: Sequence[Append]) -> list[Verdict]:
        what = ", ".join(_text_of(append) for append in batch)
        digest = _digest(record.body for append in batch for record in append.records)
        return self._world.written(
            "append", batch[0].lease.run_id, what, functools.partial(self._appended, batch), digest
        )

    def _appended(self, batch: Sequence[Append]) -> list[Verdict]:
        verdicts = super().append(batch)
        for append, verdict in zip(batch, verdicts, strict=True):
            if isinstance(verdict, FlujoError):
                self._world.note("refused", f"{type(verdict).__name__} {append.lease.run_id!r}")
            else:
                self._world.committed(append)
        return verdicts

    def _commit(self, appends: Sequence[Append]) -> None:
        if not appends:
            return super()._commit(appends)
        what = ", ".join(_text_of(append) for append in appends)
        self._world.written("commit", appends[0].lease.run_id, what, functools.partial(self._together, appends))
        return None

    def _together(self, appends: Sequence[Append]) -> None:
        super()._commit(appends)
        for append in appends:
            self._world.committed(append)

    def _claim(self, run_id: RunId, dead: str | None, owner: str, lease_s: float, per_key: int | None) -> Lease:
        call = functools.partial(super()._claim, run_id, dead, owner, lease_s, per_key)
        lease = self._world.written("claim", run_id, repr(run_id), call)
        self._world.calls.grant(lease)
        return lease

    def claim_all(self, runs: Sequence[StoredRun], *, owner: str, lease_s: float) -> list[ClaimedRun]:
        call = functools.partial(super().claim_all, runs, owner=owner, lease_s=lease_s)
        what = ", ".join(repr(run.run_id) for run in runs)
        claimed = self._world.written("claim", runs[0].run_id if runs else RUN_ID, what, call)
        for each in claimed:
            self._world.calls.grant(each.lease)
        return claimed

    def renew(self, leases: Sequence[Lease], *, lease_s: float) -> list[LeaseLost | None]:
        call = functools.partial(super().renew, leases, lease_s=lease_s)
        return self._world.written("renew", leases[0].run_id, ", ".join(repr(each.run_id) for each in leases), call)

    def answer(self, run_id: RunId, path: StepPath, *, token: str, record: Record) -> None:
        call = functools.partial(super().answer, run_id, path, token=token, record=record)
        self._world.written("answer", run_id, repr(path), call, _digest([record.body]))

    def defer(self, run_id: RunId, path: StepPath, **options: Any) -> None:
        self._world.written("defer", run_id, repr(path), functools.partial(super().defer, run_id, path, **options))

    def request_cancel(self, run_id: RunId, *, reason: str) -> None:
        call = functools.partial(super().request_cancel, run_id, reason=reason)
        self._world.written("request_cancel", run_id, repr(run_id), call)

    def draw(self, lease: Lease, claims: Sequence[BudgetClaim]) -> list[BudgetSnapshot]:
        call = functools.partial(super().draw, lease, claims)
        return self._world.written("draw", lease.run_id, repr(lease.run_id), call)

    def reward(self, run_id: RunId, path: StepPath, **options: Any) -> None:
        self._world.written("reward", run_id, repr(path), functools.partial(super().reward, run_id, path, **options))

    def retry(self, run_id: RunId, **options: Any) -> None:
        self._world.written("retry", run_id, repr(run_id), functools.partial(super().retry, run_id, **options))
        self._world.calls.forget(run_id)
        self._world.used_by.pop(run_id, None)


@attrs.frozen
class _LeaseClock:
    """Lease clock on simulated time."""

    process: SimulatedProcess

    def boot(self) -> str:
        return "simulated"

    def now(self) -> float:
        return self.process.now


def _text_of(append: Append) -> str:
    texts = [f"{record.kind} {record.path!r}" for record in append.records]
    if append.release:
        texts.append("release")
    return ", ".join(texts) or "nothing"


def _name_of(run_id: str, record: Record) -> str:
    """Return the name of a step or a unit in `called`."""
    step, is_unit, key = record.path.rpartition("/~u")
    return f"{run_id}:{step}:{key}" if is_unit else f"{run_id}:{record.path}"


def _usage_of(record: Record) -> Usage:
    """Return the usage in a record of a step or a unit."""
    where = f"record {record.path!r}"
    body = record_bodies.read_body(record.body, where=where)
    owner = body if record.kind == "unit" else body.get("success") or body.get("failure", {}).get("step_result") or {}
    return record_bodies.read_usage(owner.get("usage"), where=where)


def _fails(limits: UsageLimits | None) -> TypeGuard[UsageLimits]:
    """Return whether limits fail their owner; an answer raises others."""
    return limits is not None and limits.when_reached == "fail" and limits.window is None


def _digest(bodies: Iterable[str]) -> str:
    found = hashlib.blake2b(digest_size=6)
    for body in bodies:
        found.update(body.encode("utf-8", "surrogatepass"))
    return found.hexdigest()
