"""The conformance suite for stores: what every store must do, as tests that run on yours.

```python
import pytest
from flujo_actors.testing.store_conformance import StoreConformance, StorePlace

class MyPlace(StorePlace):
    def open(self): return MyStore(self.address, clock=self.clock)
    def advance(self, seconds): self.clock.advance(seconds)

class TestMyStore(StoreConformance):
    @pytest.fixture
    def place(self, tmp_path):
        return MyPlace(tmp_path)
```

The clauses about damage, blobs and versions are skipped for a place that does not say how to damage it; those about
processes for one that is not `between_processes`; those about deadlines, beliefs and budgets for a store
that has no `expire`, no `beliefs` or no `draw`. Processes are forked, so the suite needs a system that has forks.
"""

from __future__ import annotations

import pytest

from ..stores._clock import ManualClock as ManualClock
from ..stores._port import Store
from ._store_clauses.answering import AnsweringClauses
from ._store_clauses.believing import BeliefClauses
from ._store_clauses.concurrency import ConcurrencyClauses
from ._store_clauses.controlling import ControlClauses
from ._store_clauses.crashing import CrashClauses
from ._store_clauses.deadlines import DeadlineClauses
from ._store_clauses.drawing import BudgetClauses
from ._store_clauses.fencing import FencingClauses
from ._store_clauses.keeping import KeepingClauses
from ._store_clauses.place import StorePlace as StorePlace
from ._store_clauses.queueing import QueueClauses
from ._store_clauses.scanning import ScanClauses
from ._store_clauses.writing import WritingClauses


class StoreConformance(
    WritingClauses,
    FencingClauses,
    ControlClauses,
    QueueClauses,
    AnsweringClauses,
    DeadlineClauses,
    BeliefClauses,
    BudgetClauses,
    KeepingClauses,
    ScanClauses,
    ConcurrencyClauses,
    CrashClauses,
):
    """All clauses; subclass it with a fixture `place` that returns an empty `StorePlace`."""

    @pytest.fixture
    def store(self, place: StorePlace) -> Store:
        """A store on the place."""
        return place.open()
