"""A desk in a Ray cluster, against the clauses of every engine, and as the carrier of a real fleet."""

from __future__ import annotations

import copy
import functools
import uuid
from pathlib import Path
from typing import Any

import pytest
from ray_cluster import ray_head

from flujo_actors._fleet.engine_port import Engine, Ticket
from flujo_actors.testing.engine_conformance import EngineConformance, EnginePlace

pytestmark = pytest.mark.engines


class RayPlace(EnginePlace):
    ask_again_s = 4.0
    patience_s = 90.0

    def __init__(self) -> None:
        self._address, self._prefix = ray_head().address, f"{uuid.uuid4().hex[:8]}-"

    def open(self) -> Engine:
        """All share the process that hands in: to start it takes as long as a test."""
        engine = copy.copy(shared_engine(self._address))
        engine._prefix = self._prefix
        return engine

    def restart(self) -> None:
        ray_head().kill()
        ray_head().start()


@functools.cache
def shared_engine(address: str) -> Any:
    from flujo_actors._fleet.contrib.ray_engine import RayEngine

    engine = RayEngine(address, patience_s=60.0)
    engine.prepare()
    return engine


class TestRay(EngineConformance):
    """Tickets wait at an actor of the cluster."""

    @pytest.fixture
    def place(self) -> EnginePlace:
        return RayPlace()

    def test_the_head_is_heard_on_loopback_alone(self, place: EnginePlace) -> None:
        """Tests listen to nobody else."""
        assert listening(ray_head().port) == {"loopback"}

    def test_a_caller_lets_go_of_a_head_that_was_replaced(self, place: EnginePlace) -> None:
        """Also if it has nothing to ask: its process ends, and the next ticket starts another one."""
        from flujo_actors._fleet.contrib.ray_engine import RayEngine

        engine = RayEngine(ray_head().address, patience_s=60.0)
        engine.prepare()
        sidecar = engine._sidecar
        assert sidecar is not None
        place.restart()
        assert sidecar.gone.wait(120)
        engine.submit([Ticket(run_id="after")])
        assert engine._sidecar is not sidecar


def listening(port: int) -> set[str]:
    """Where somebody listens to a port, as Linux writes it down."""
    found = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            address, _, state = line.split()[1:4]
            host, _, number = address.rpartition(":")
            if int(number, 16) == port and state == "0A":
                found.add("loopback" if host.endswith("0100007F") else host)
    return found
