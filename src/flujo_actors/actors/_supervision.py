"""What a supervisor does when a child ends. Pure: family and exit go in, family and decision come out.

1. A child is up, or it waits to be restarted. One that has ended for good is no longer in the family.
   Children keep the order in which they were first started.
2. An exit asks for a decision only if its child is up; whatever ends while its restart is under way belongs
   to that restart.
3. A `permanent` child is restarted after every exit, a `transient` one after a crash, a `temporary` one
   never.
4. An exit that calls for no restart ends that child alone; no sibling is touched and nothing is counted.
5. If, with this one, more than `intensity.restarts` restarts fell into the last `intensity.period_s` seconds,
   the family is given up: all children are stopped in reverse order and the supervisor's caller decides.
6. Otherwise a group is restarted: the child (`one_for_one`), the whole family (`one_for_all`), or the child
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

from .._core.backoff import Backoff
from ..errors import DeclarationError

RestartType: TypeAlias = Literal["permanent", "transient", "temporary"]
"""After which exits a child is started again (rule 3)."""

Strategy: TypeAlias = Literal["one_for_one", "one_for_all", "rest_for_one"]
"""Who is restarted together with a child (rule 6)."""


@attrs.frozen(kw_only=True)
class ChildSpec:
    """How one child is run: what it is called, when it is restarted, how long it may take to end."""

    name: str
    restart: RestartType = "permanent"
    shutdown_s: float = 5.0
    """Asked to end, a child has this long; then it is cancelled. 0 cancels at once, `inf` waits."""
    backoff: Backoff = attrs.field(factory=Backoff)
    capacity: int | float = 64
    """How many messages its mailbox holds."""

    def __attrs_post_init__(self) -> None:
        _require(bool(self.name), "ChildSpec.name", self.name, "not empty")
        _require(self.restart in get_args(RestartType), "ChildSpec.restart", self.restart, "a restart type")
        _require(self.shutdown_s >= 0, "ChildSpec.shutdown_s", self.shutdown_s, "0 or more")
        _require(self.capacity >= 1, "ChildSpec.capacity", self.capacity, "1 or more")


@attrs.frozen(kw_only=True)
class Intensity:
    """At most `restarts` restarts within any `period_s` seconds."""

    restarts: int = 3
    period_s: float = 5.0

    def __attrs_post_init__(self) -> None:
        _require(self.restarts >= 0, "Intensity.restarts", self.restarts, "0 or more")
        _require(0 < self.period_s < math.inf, "Intensity.period_s", self.period_s, "above 0 and finite")

    def __str__(self) -> str:
        return f"{self.restarts} restarts in {self.period_s:g} s"


# --- what a supervisor knows ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Up:
    """The child runs."""

    since: float


@attrs.frozen(kw_only=True)
class Waiting:
    """The child is to be started when `due` has come."""

    due: float


@attrs.frozen(kw_only=True)
class Child:
    """One child as its supervisor knows it."""

    spec: ChildSpec
    phase: Up | Waiting
    crashes: int = 0
    """All crashes of this child."""
    streak: int = 0
    """Its restarts in a row (rule 8)."""


@attrs.frozen(kw_only=True)
class Family:
    """A supervisor's rules, its children in start order, and when it restarted."""

    strategy: Strategy = "one_for_one"
    intensity: Intensity = attrs.field(factory=Intensity)
    children: Mapping[str, Child] = attrs.field(factory=dict)
    restarts: tuple[float, ...] = ()

    def __attrs_post_init__(self) -> None:
        _require(self.strategy in get_args(Strategy), "strategy", self.strategy, "a strategy")


# --- what a supervisor decides ----------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Settled:
    """Nothing to do (rules 2 and 4)."""


@attrs.frozen(kw_only=True)
class Restart:
    """Stop these children, in this order (`ended` for good), and start these when `due` has come."""

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


Decision: TypeAlias = Settled | Restart | Escalate


def admit(family: Family, spec: ChildSpec, *, now: float) -> Family:
    """The family with one more child, which is up."""
    if spec.name in family.children:
        raise DeclarationError(f"this supervisor has a child {spec.name!r}; give the new one another name")
    return _with(family, Child(spec=spec, phase=Up(since=now)))


def dismiss(family: Family, name: str) -> Family:
    """The family without that child."""
    remaining = dict(family.children)
    remaining.pop(name, None)
    return attrs.evolve(family, children=remaining)


def stop_order(family: Family) -> tuple[str, ...]:
    """Every child, last started first."""
    return tuple(reversed(tuple(family.children)))


def next_due(family: Family) -> float:
    """When the next start is due, `inf` if none is."""
    return min(_dues(family.children.values()), default=math.inf)


def start_due(family: Family, *, now: float) -> tuple[Family, tuple[str, ...]]:
    """The children whose time has come, in start order, and the family in which they are up."""
    due = [c for c in family.children.values() if isinstance(c.phase, Waiting) and c.phase.due <= now]
    started = [attrs.evolve(child, phase=Up(since=now)) for child in due]
    return _with(family, *started), tuple(child.spec.name for child in due)


def on_exit(
    family: Family, name: str, *, crashed: bool, now: float, rng: Callable[[], float]
) -> tuple[Family, Decision]:
    """What to do now that the child has ended, by a crash or by itself, and the family once it is done."""
    child = family.children.get(name)
    if child is None or isinstance(child.phase, Waiting):
        return family, Settled()
    if not _comes_back(child.spec.restart, crashed=crashed):
        return dismiss(family, name), Settled()
    child = _after_exit(child, child.phase, family.intensity, crashed=crashed, now=now)
    recent = (*(at for at in family.restarts if at > now - family.intensity.period_s), now)
    if len(recent) > family.intensity.restarts:
        return family, _give_up(family, child)
    return _restart(attrs.evolve(family, restarts=recent), child, now + _wait(child, rng))


def _comes_back(restart: RestartType, *, crashed: bool) -> bool:
    match restart:
        case "permanent":
            return True
        case "transient":
            return crashed
        case "temporary":
            return False
        case _:
            assert_never(restart)


def _after_exit(child: Child, up: Up, intensity: Intensity, *, crashed: bool, now: float) -> Child:
    steady = now - up.since >= intensity.period_s
    return attrs.evolve(child, crashes=child.crashes + crashed, streak=1 if steady else child.streak + 1)


def _wait(child: Child, rng: Callable[[], float]) -> float:
    return child.spec.backoff.delay(child.streak, rng)


def _give_up(family: Family, child: Child) -> Escalate:
    siblings = tuple(name for name in stop_order(family) if name != child.spec.name)
    return Escalate(stop=siblings, child=child.spec.name, crashes=child.crashes)


def _restart(family: Family, ended: Child, due: float) -> tuple[Family, Restart]:
    group = _group(family, ended.spec.name)
    up = [c for c in group if isinstance(c.phase, Up) and c.spec.name != ended.spec.name]
    decision = Restart(
        stop=tuple(c.spec.name for c in reversed(up)),
        ended=frozenset(c.spec.name for c in up if c.spec.restart == "temporary"),
        start=tuple(c.spec.name for c in group if c.spec.restart != "temporary"),
        due=max([due, *_dues(group)]),
    )
    return _await_restart(_with(family, ended), decision), decision


def _group(family: Family, name: str) -> list[Child]:
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


def _await_restart(family: Family, decision: Restart) -> Family:
    waiting = Waiting(due=decision.due)
    family = _with(family, *(attrs.evolve(family.children[name], phase=waiting) for name in decision.start))
    return attrs.evolve(family, children={name: c for name, c in family.children.items() if name not in decision.ended})


def _with(family: Family, *changed: Child) -> Family:
    return attrs.evolve(family, children={**family.children, **{c.spec.name: c for c in changed}})


def _dues(children: Iterable[Child]) -> list[float]:
    return [child.phase.due for child in children if isinstance(child.phase, Waiting)]


def _require(holds: bool, field: str, value: object, wanted: str) -> None:
    if not holds:
        raise DeclarationError(f"{field} is {value!r}; it must be {wanted}")
