"""Pure decisions of a supervisor after a child's exit.

1. A child is up, or it waits to be restarted. One that has ended for good is no longer in the state.
   Children keep the order in which they were first started.
2. An exit needs a decision only if its child is up; an exit during a restart belongs to that restart.
3. A `permanent` child is restarted after every exit, a `transient` one after a crash, a `temporary` one
   never.
4. An exit without a restart ends that child alone; no sibling is affected and nothing is counted.
5. If, with this one, more than `intensity.restarts` restarts fell into the last `intensity.period_s` seconds,
   the supervisor gives up: all children are stopped in reverse order and its caller decides.
6. Otherwise a group is restarted: the child (`one_for_one`), all children (`one_for_all`), or the child
   and all that were started after it (`rest_for_one`).
7. Members that are up are stopped first, in reverse order. Temporary members end there, for nothing restarts
   them. The others start again in order, together, and never before the last of them was due anyway.
8. The wait is the backoff of the child that ended, by the number of its restarts in a row. A child that was
   up for `intensity.period_s` seconds starts counting afresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Literal, TypeAlias, assert_never, get_args

import attrs

from .._core.exit_rules import RestartType as RestartType
from .._core.exit_rules import exit_action
from .._core.retry_decisions import Backoff
from ..errors import DeclarationError

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Group restarted together with a child (rule 6)."""


@attrs.frozen(kw_only=True)
class ChildSpec:
    """Specification of a child: name, restart type, shutdown time."""

    name: str
    """Name of the child."""
    restart: RestartType = "permanent"
    """Ends of the actor after which it is restarted."""
    shutdown_s: float = 5.0
    """Shutdown time before cancellation. 0 cancels at once, `inf` waits."""
    backoff: Backoff = attrs.field(factory=Backoff)
    """Delay before a restart."""
    capacity: int | float = 64
    """Capacity of its mailbox."""

    def __attrs_post_init__(self) -> None:
        _require(bool(self.name), "ChildSpec.name", self.name, "not empty")
        _require(self.restart in get_args(RestartType), "ChildSpec.restart", self.restart, "a restart type")
        _require(self.shutdown_s >= 0, "ChildSpec.shutdown_s", self.shutdown_s, "0 or more")
        _require(self.capacity >= 1, "ChildSpec.capacity", self.capacity, "1 or more")


@attrs.frozen(kw_only=True)
class Intensity:
    """At most `restarts` restarts within any `period_s` seconds."""

    restarts: int = 3
    """Most restarts within the period."""
    period_s: float = 5.0
    """Length of the period in seconds."""

    def __attrs_post_init__(self) -> None:
        _require(self.restarts >= 0, "Intensity.restarts", self.restarts, "0 or more")
        _require(0 < self.period_s < math.inf, "Intensity.period_s", self.period_s, "above 0 and finite")

    def __str__(self) -> str:
        return f"{self.restarts} restarts in {self.period_s:g} s"


# --- state ------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Up:
    """The child runs."""

    since: float


@attrs.frozen(kw_only=True)
class Waiting:
    """The child is to be started when `due` has come."""

    due: float


@attrs.frozen(kw_only=True)
class ChildState:
    """State of one child."""

    spec: ChildSpec
    phase: Up | Waiting
    crashes: int = 0
    """All crashes of this child."""
    streak: int = 0
    """Its restarts in a row (rule 8)."""


@attrs.frozen(kw_only=True)
class SupervisorState:
    """A supervisor's rules, its children in start order, and when it restarted."""

    strategy: Strategy = "one_for_one"
    intensity: Intensity = attrs.field(factory=Intensity)
    children: Mapping[str, ChildState] = attrs.field(factory=dict)
    restarts: tuple[float, ...] = ()

    def __attrs_post_init__(self) -> None:
        _require(self.strategy in get_args(Strategy), "strategy", self.strategy, "a strategy")


# --- decisions --------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class NoAction:
    """Action of rules 2 and 4: none."""


@attrs.frozen(kw_only=True)
class Restart:
    """Stop these children in order, and start these at `due`."""

    stop: tuple[str, ...]
    ended: frozenset[str]
    start: tuple[str, ...]
    due: float


@attrs.frozen(kw_only=True)
class Escalate:
    """Stop these children, in this order, and give up because of `child`."""

    stop: tuple[str, ...]
    child: str
    crashes: int


Decision: TypeAlias = NoAction | Restart | Escalate


def admit(family: SupervisorState, spec: ChildSpec, *, now: float) -> SupervisorState:
    """Return the family with one more child, which is up."""
    if spec.name in family.children:
        raise DeclarationError(f"this supervisor has a child {spec.name!r}; give the new one another name")
    return _with(family, ChildState(spec=spec, phase=Up(since=now)))


def dismiss(family: SupervisorState, name: str) -> SupervisorState:
    """Return the family without that child."""
    remaining = dict(family.children)
    remaining.pop(name, None)
    return attrs.evolve(family, children=remaining)


def stop_order(family: SupervisorState) -> tuple[str, ...]:
    """Return every child, last started first."""
    return tuple(reversed(tuple(family.children)))


def next_due(family: SupervisorState) -> float:
    """Return the time of the next due start, or `inf`."""
    return min(_dues(family.children.values()), default=math.inf)


def start_due(family: SupervisorState, *, now: float) -> tuple[SupervisorState, tuple[str, ...]]:
    """Return the due children in start order, and the resulting state."""
    due = [c for c in family.children.values() if isinstance(c.phase, Waiting) and c.phase.due <= now]
    started = [attrs.evolve(child, phase=Up(since=now)) for child in due]
    return _with(family, *started), tuple(child.spec.name for child in due)


def on_exit(
    family: SupervisorState, name: str, *, crashed: bool, now: float, rng: Callable[[], float]
) -> tuple[SupervisorState, Decision]:
    """Return the decision after a child's exit, and the resulting state."""
    child = family.children.get(name)
    if child is None or isinstance(child.phase, Waiting):
        return family, NoAction()
    recent = (*(at for at in family.restarts if at > now - family.intensity.period_s), now)
    left = family.intensity.restarts - len(recent) + 1
    action = exit_action(child.spec.restart, failed=crashed, restarts_left=left)
    if action == "end":
        return dismiss(family, name), NoAction()
    child = _after_exit(child, child.phase, family.intensity, crashed=crashed, now=now)
    if action == "escalate":
        return family, _give_up(family, child)
    return _restart(attrs.evolve(family, restarts=recent), child, now + _wait(child, rng))


def _after_exit(child: ChildState, up: Up, intensity: Intensity, *, crashed: bool, now: float) -> ChildState:
    steady = now - up.since >= intensity.period_s
    return attrs.evolve(child, crashes=child.crashes + crashed, streak=1 if steady else child.streak + 1)


def _wait(child: ChildState, rng: Callable[[], float]) -> float:
    return child.spec.backoff.delay(child.streak, rng)


def _give_up(family: SupervisorState, child: ChildState) -> Escalate:
    siblings = tuple(name for name in stop_order(family) if name != child.spec.name)
    return Escalate(stop=siblings, child=child.spec.name, crashes=child.crashes)


def _restart(family: SupervisorState, ended: ChildState, due: float) -> tuple[SupervisorState, Restart]:
    group = _group(family, ended.spec.name)
    up = [c for c in group if isinstance(c.phase, Up) and c.spec.name != ended.spec.name]
    decision = Restart(
        stop=tuple(c.spec.name for c in reversed(up)),
        ended=frozenset(c.spec.name for c in up if c.spec.restart == "temporary"),
        start=tuple(c.spec.name for c in group if c.spec.restart != "temporary"),
        due=max([due, *_dues(group)]),
    )
    return _await_restart(_with(family, ended), decision), decision


def _group(family: SupervisorState, name: str) -> list[ChildState]:
    children = list(family.children.values())
    match family.strategy:
        case "one_for_one":
            return [family.children[name]]
        case "one_for_all":
            return children
        case "rest_for_one":
            return children[list(family.children).index(name) :]
        case _:
            assert_never(family.strategy)


def _await_restart(family: SupervisorState, decision: Restart) -> SupervisorState:
    waiting = Waiting(due=decision.due)
    family = _with(family, *(attrs.evolve(family.children[name], phase=waiting) for name in decision.start))
    return attrs.evolve(family, children={name: c for name, c in family.children.items() if name not in decision.ended})


def _with(family: SupervisorState, *changed: ChildState) -> SupervisorState:
    return attrs.evolve(family, children={**family.children, **{c.spec.name: c for c in changed}})


def _dues(children: Iterable[ChildState]) -> list[float]:
    return [child.phase.due for child in children if isinstance(child.phase, Waiting)]


def _require(holds: bool, field: str, value: object, wanted: str) -> None:
    if not holds:
        raise DeclarationError(f"{field} is {value!r}; it must be {wanted}")
