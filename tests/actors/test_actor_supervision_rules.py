"""The pure decisions of a supervisor, rule by rule (the numbers are those of `actors._supervision_rules`)."""

from __future__ import annotations

import math
from typing import TypeAlias

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flujo_actors._core.retry_decisions import Backoff
from flujo_actors.actors._supervision_rules import (
    ChildSpec,
    ChildState,
    Escalate,
    Intensity,
    NoAction,
    Restart,
    RestartType,
    Strategy,
    SupervisorState,
    Up,
    Waiting,
    admit,
    dismiss,
    next_due,
    on_exit,
    start_due,
    stop_order,
)
from flujo_actors.errors import DeclarationError

NOW = 100.0
LENIENT = Intensity(restarts=1000, period_s=10)
RESTART_TYPES: tuple[RestartType, ...] = ("permanent", "transient", "temporary")
STRATEGIES: tuple[Strategy, ...] = ("one_for_one", "one_for_all", "rest_for_one")

phases = st.one_of(
    st.builds(Up, since=st.floats(0, NOW)),
    st.builds(Waiting, due=st.floats(NOW, NOW + 50)),
)
intensities = st.builds(Intensity, restarts=st.integers(0, 4), period_s=st.floats(0.5, 50))
histories = st.lists(st.floats(0, NOW), max_size=6).map(lambda times: tuple(sorted(times)))


@st.composite
def families(draw: st.DrawFn, intensity: st.SearchStrategy[Intensity] = intensities) -> SupervisorState:
    """Families in any state they can be in; temporary children never wait for a restart."""
    children = {}
    for number in range(draw(st.integers(1, 6))):
        restart = draw(st.sampled_from(RESTART_TYPES))
        phase = draw(phases) if restart != "temporary" else Up(since=draw(st.floats(0, NOW)))
        spec = ChildSpec(name=f"c{number}", restart=restart)
        children[spec.name] = ChildState(spec=spec, phase=phase, streak=draw(st.integers(0, 5)))
    strategy = draw(st.sampled_from(STRATEGIES))
    return SupervisorState(strategy=strategy, intensity=draw(intensity), children=children, restarts=draw(histories))


Departure: TypeAlias = tuple[SupervisorState, tuple[str, bool, float]]


@st.composite
def departures(draw: st.DrawFn, intensity: st.SearchStrategy[Intensity] = intensities) -> Departure:
    """A family and who leaves it: the name, whether it crashed, and what chance says."""
    family = draw(families(intensity))
    names = [name for name in family.children if is_up(family, name)] or list(family.children)
    name = draw(st.one_of(st.sampled_from(names), st.sampled_from([*family.children, "nobody"])))
    return family, (name, draw(st.booleans()), draw(st.floats(0, 1, exclude_max=True)))


def decide(
    family: SupervisorState, leaving: tuple[str, bool, float]
) -> tuple[SupervisorState, NoAction | Restart | Escalate]:
    """What happens when that child leaves now."""
    name, crashed, chance = leaving
    return on_exit(family, name, crashed=crashed, now=NOW, rng=lambda: chance)


def is_up(family: SupervisorState, name: str) -> bool:
    """Whether that child runs."""
    return name in family.children and isinstance(family.children[name].phase, Up)


def wants_restart(family: SupervisorState, name: str, crashed: bool) -> bool:
    """Rule 3, said once more."""
    restart = family.children[name].spec.restart
    return restart == "permanent" or (restart == "transient" and crashed)


@given(departures())
def test_rule_2_only_a_child_that_is_up_can_leave(departure: Departure) -> None:
    """The exit of a child that waits, or has ended, changes nothing."""
    family, leaving = departure
    if not is_up(family, leaving[0]):
        assert decide(family, leaving) == (family, NoAction())


@given(departures())
def test_rules_3_and_4_no_restart_ends_that_child_alone(departure: Departure) -> None:
    """The restart type decides, and siblings and counts stay as they are."""
    family, leaving = departure
    name, crashed, _ = leaving
    if is_up(family, name):
        after, decision = decide(family, leaving)
        settled = not wants_restart(family, name, crashed)
        assert (decision == NoAction()) == settled
        if settled:
            assert after == dismiss(family, name)


@given(departures())
def test_rule_5_escalates_exactly_when_restarts_are_too_many(departure: Departure) -> None:
    """The restarts of the last period count, with this one; then everything else is stopped, in reverse."""
    family, leaving = departure
    name, crashed, _ = leaving
    if is_up(family, name) and wants_restart(family, name, crashed):
        recent = [at for at in family.restarts if at > NOW - family.intensity.period_s]
        _, decision = decide(family, leaving)
        assert isinstance(decision, Escalate) == (len(recent) + 1 > family.intensity.restarts)
        if isinstance(decision, Escalate):
            assert decision.child == name
            assert list(decision.stop) == [other for other in stop_order(family) if other != name]


@given(departures(intensity=st.just(LENIENT)))
def test_rules_6_and_7_the_group_stops_in_reverse_and_starts_in_order(departure: Departure) -> None:
    """Who is in the group follows from the strategy; temporary members are stopped and stay away."""
    family, leaving = departure
    name = leaving[0]
    after, decision = decide(family, leaving)
    if isinstance(decision, Restart):
        order = list(family.children)
        first = order.index(name)
        group = {"one_for_one": [name], "one_for_all": order, "rest_for_one": order[first:]}[family.strategy]
        temporary = {c for c in group if family.children[c].spec.restart == "temporary"}
        assert list(decision.stop) == [c for c in reversed(group) if is_up(family, c) and c != name]
        assert list(decision.start) == [c for c in group if c not in temporary]
        assert decision.ended == temporary
        assert list(after.children) == [c for c in order if c not in temporary]
        assert all(after.children[c].phase == Waiting(due=decision.due) for c in decision.start)
        assert all(after.children[c] == family.children[c] for c in order if c not in group)


@given(departures(intensity=st.just(LENIENT)))
def test_rules_7_and_8_the_wait_is_the_backoff_and_no_shorter_than_any_members(departure: Departure) -> None:
    """The delay follows the streak of the child that left; a member that was due later delays all."""
    family, leaving = departure
    name, _, chance = leaving
    after, decision = decide(family, leaving)
    if isinstance(decision, Restart):
        child = family.children[name]
        assert isinstance(child.phase, Up)
        streak = 1 if NOW - child.phase.since >= LENIENT.period_s else child.streak + 1
        own = NOW + child.spec.backoff.delay(streak, lambda: chance)
        others = [family.children[c].phase for c in decision.start]
        assert decision.due == max([own, *(p.due for p in others if isinstance(p, Waiting))])
        assert after.children[name].streak == streak
        assert next_due(after) <= decision.due


@given(families(), st.floats(NOW, NOW + 60))
def test_due_children_start_in_order_and_are_up(family: SupervisorState, now: float) -> None:
    """Those whose time has come start, the others go on waiting."""
    after, names = start_due(family, now=now)
    waiting = {n: c.phase.due for n, c in family.children.items() if isinstance(c.phase, Waiting)}
    assert list(names) == [name for name, due in waiting.items() if due <= now]
    assert all(after.children[name].phase == Up(since=now) for name in names)
    assert next_due(after) > now
    assert list(after.children) == list(family.children)


def test_children_stop_in_the_reverse_of_their_start() -> None:
    """Admission order is start order."""
    family = SupervisorState()
    for name in "abc":
        family = admit(family, ChildSpec(name=name), now=0)
    assert stop_order(family) == ("c", "b", "a")
    assert next_due(family) == math.inf


def test_a_restart_that_is_a_full_period_old_no_longer_counts() -> None:
    """The period is open at its far end."""
    strict = Intensity(restarts=1, period_s=10)
    for age, escalates in ((9.99, True), (10.0, False)):
        family = admit(SupervisorState(intensity=strict, restarts=(NOW - age,)), ChildSpec(name="a"), now=0)
        assert isinstance(decide(family, ("a", True, 0.0))[1], Escalate) == escalates


def test_two_children_cannot_share_a_name() -> None:
    """The name is how a child is found."""
    family = admit(SupervisorState(), ChildSpec(name="a"), now=0)
    with pytest.raises(DeclarationError, match="'a'"):
        admit(family, ChildSpec(name="a"), now=0)


def test_a_crashing_child_waits_longer_each_time_until_it_was_steady() -> None:
    """Rule 8 over a life of four crashes, the last after a long good time."""
    spec = ChildSpec(name="a", backoff=Backoff(first=1, jitter=0))
    family = admit(SupervisorState(intensity=Intensity(restarts=5, period_s=10)), spec, now=0)
    waits = []
    for now in (0.0, 2.0, 5.0, 60.0):
        family, decision = on_exit(family, "a", crashed=True, now=now, rng=lambda: 0.0)
        assert isinstance(decision, Restart)
        waits.append(decision.due - now)
        family, _ = start_due(family, now=decision.due)
    assert waits == [1, 2, 4, 1]
    assert family.children["a"].crashes == 4


@pytest.mark.parametrize(
    "declare",
    [
        lambda: ChildSpec(name=""),
        lambda: ChildSpec(name="a", restart="sometimes"),  # type: ignore[arg-type]
        lambda: ChildSpec(name="a", shutdown_s=-1),
        lambda: ChildSpec(name="a", capacity=0),
        lambda: Intensity(restarts=-1),
        lambda: Intensity(period_s=0),
        lambda: SupervisorState(strategy="all_for_one"),  # type: ignore[arg-type]
    ],
)
def test_nonsense_is_refused_where_it_is_declared(declare: object) -> None:
    """A wrong declaration fails when it is built."""
    assert callable(declare)
    with pytest.raises(DeclarationError):
        declare()


def test_specs_are_frozen() -> None:
    """A spec can be shared."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        ChildSpec(name="a").name = "b"  # type: ignore[misc]
