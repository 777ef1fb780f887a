"""Conformance suite for stores.

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

The clauses about damage, blobs and versions are skipped for a location that cannot be damaged; those about processes
for one that is not `between_processes`; those about deadlines, statistics, budgets, schedules, labels and loops for a
store that has no `expire`, `beliefs`, `draw`, `fire`, `set_labels`, `compacted`, `due`, `send` or `steer`.
Processes are forked, so the suite needs a system that has forks.
"""

from __future__ import annotations

from .._core.lazy_exports import missing_extra

try:
    import pytest
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra=None, needed_by="flujo_actors.testing.store_conformance") from _missing

from ..stores._lease_clock import ManualClock as ManualClock
from ..stores._store_port import Store
from ._store_clauses.answer_clauses import AnsweringClauses, DeadlineClauses, WaitClauses
from ._store_clauses.budget_clauses import BeliefClauses, BudgetClauses, RateClauses, WindowClauses
from ._store_clauses.control_clauses import (
    ControlClauses,
    DutyClauses,
    FencingClauses,
    OutboxClauses,
    RecoveryClauses,
    RetryClauses,
    SteeringClauses,
)
from ._store_clauses.persistence_clauses import KeepingClauses, TransferClauses
from ._store_clauses.query_clauses import LabelClauses, ScanClauses
from ._store_clauses.queue_clauses import ClaimClauses, QueueClauses, ScheduleClauses
from ._store_clauses.store_target import StorePlace as StorePlace
from ._store_clauses.write_clauses import CompactionClauses, ConcurrencyClauses, CrashClauses, WritingClauses


class StoreConformance(
    WritingClauses,
    FencingClauses,
    ControlClauses,
    SteeringClauses,
    QueueClauses,
    ClaimClauses,
    AnsweringClauses,
    DeadlineClauses,
    WaitClauses,
    BeliefClauses,
    BudgetClauses,
    WindowClauses,
    RateClauses,
    ScheduleClauses,
    KeepingClauses,
    ScanClauses,
    LabelClauses,
    RetryClauses,
    RecoveryClauses,
    CompactionClauses,
    TransferClauses,
    DutyClauses,
    OutboxClauses,
    ConcurrencyClauses,
    CrashClauses,
):
    """All clauses; subclasses provide a fixture `place` with an empty `StorePlace`."""

    @pytest.fixture
    def store(self, place: StorePlace) -> Store:
        """A store on the place."""
        return place.open()
