"""What can be known of a lease's owner: only what is proven counts."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import pytest

from flujo_actors._durable.leases import GONE, Process, liveness_of, process_of

HERE = Process(host="box", pid=7, boot="boot-1", spaces="11.12", started="500")
OTHER = attrs.evolve(HERE, pid=8, started="600")


def seen(started: str | None) -> Callable[[int], str | None]:
    """A system that says when process 8 began, and is asked about no other."""
    return {8: started}.__getitem__


def test_an_owner_names_its_process_for_good() -> None:
    """Whatever the host is called."""
    for host in ("box", "a:b::c", ""):
        process = attrs.evolve(HERE, host=host)
        assert process_of(process.owner("claim")) == process


FOREIGN = [None, "", "thief", "box:8:12345678", "box:-8:x:b:s:1", "box:0:x:b:s:1", "::::::"]
HUGE = f"box:{'9' * 5_000}:x:b:s:1"


@pytest.mark.parametrize("owner", [*FOREIGN, HUGE], ids=[*map(str, FOREIGN), "huge"])
def test_a_name_of_another_form_is_unknown(owner: str | None) -> None:
    """Also that of a process that an earlier version of the library named."""
    assert process_of(owner) is None
    assert liveness_of(owner, here=HERE, started_at=seen(GONE)) == "unknown"


@pytest.mark.parametrize(
    ("started", "fate"), [("600", "alive"), (GONE, "dead"), ("601", "dead"), (None, "unknown")], ids=str
)
def test_a_process_of_this_machine_is_dead_if_it_is_gone_or_its_number_is_another_ones(
    started: str | None, fate: str
) -> None:
    """A number that was given out again is no sign of life, and one that is hidden is no sign of death."""
    assert liveness_of(OTHER.owner("x"), here=HERE, started_at=seen(started)) == fate


@pytest.mark.parametrize("elsewhere", [{"host": "pod"}, {"boot": "boot-2"}, {"spaces": "13.12"}, {"started": ""}])
def test_a_process_elsewhere_is_unknown(elsewhere: dict[str, str]) -> None:
    """Another machine, another boot, another container: its number says nothing here."""
    process = attrs.evolve(OTHER, **elsewhere)
    assert liveness_of(process.owner("x"), here=HERE, started_at=seen(GONE)) == "unknown"


def test_a_system_that_names_no_boots_knows_nobody() -> None:
    """Not even one that calls itself the same."""
    here = Process(host="box", pid=7)
    assert liveness_of(attrs.evolve(here, pid=8).owner("x"), here=here, started_at=seen(GONE)) == "unknown"


def test_this_process_knows_itself() -> None:
    """Under every claim it makes."""
    assert liveness_of(HERE.owner("x"), here=HERE, started_at=seen(None)) == "here"
