"""A desk in a Ray cluster, against the clauses of every engine, and as the carrier of a real fleet."""

from __future__ import annotations

import copy
import functools
import uuid
from typing import Any

import pytest
from ray_cluster import ray_head

from flujo_actors._fleet.port import Engine
from flujo_actors.testing.engine_conformance import EngineConformance, EnginePlace

pytestmark = pytest.mark.slow


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
    from flujo_actors._fleet.ray_engine import RayEngine

    engine = RayEngine(address, patience_s=60.0)
    engine.prepare()
    return engine


class TestRay(EngineConformance):
    """Tickets wait at an actor of the cluster."""

    @pytest.fixture
    def place(self) -> EnginePlace:
        return RayPlace()
