"""Run stores: one port, three implementations. Importing this loads no database driver.

Implementers of a custom store find here the types that its methods take and return.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.policies.selection import Belief as Belief
    from .._core.policies.selection import Evidence as Evidence
    from .._core.policies.shared_budgets import BudgetClaim as BudgetClaim
    from .._core.policies.shared_budgets import BudgetShare as BudgetShare
    from .._core.policies.shared_budgets import BudgetSnapshot as BudgetSnapshot
    from .._core.policies.shared_budgets import granted_share as granted_share
    from .._core.policies.shared_budgets import grants as grants
    from .._core.records.records import RECORD_VERSION as RECORD_VERSION
    from .._core.records.records import Admission as Admission
    from .._core.records.records import Append as Append
    from .._core.records.records import CancelRequest as CancelRequest
    from .._core.records.records import Lease as Lease
    from .._core.records.records import OpenPause as OpenPause
    from .._core.records.records import Record as Record
    from .._core.records.records import RecordKind as RecordKind
    from .._core.records.records import RunQuery as RunQuery
    from .._core.records.records import StoredRun as StoredRun
    from .._core.records.records import StoredStatus as StoredStatus
    from .._core.views.record_summaries import RecordSummary as RecordSummary
    from ._memory_store import MemoryStore as MemoryStore
    from ._store_factory import open_store as open_store
    from ._store_port import Beliefs as Beliefs
    from ._store_port import Budgets as Budgets
    from ._store_port import CacheRows as CacheRows
    from ._store_port import Deadlines as Deadlines
    from ._store_port import Events as Events
    from ._store_port import Rates as Rates
    from ._store_port import RunArchive as RunArchive
    from ._store_port import RunControl as RunControl
    from ._store_port import RunLabels as RunLabels
    from ._store_port import RunLog as RunLog
    from ._store_port import RunScan as RunScan
    from ._store_port import RunTexts as RunTexts
    from ._store_port import Schedules as Schedules
    from ._store_port import Steering as Steering
    from ._store_port import Store as Store
    from ._store_port import Transaction as Transaction
    from ._store_port import Verdict as Verdict
    from ._store_port import Wakes as Wakes
    from .postgres import PostgresStore as PostgresStore
    from .sqlite import SqliteStore as SqliteStore

    BudgetTold = BudgetSnapshot
    LightRecord = RecordSummary
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Admission": ".._core.records.records",
            "Append": ".._core.records.records",
            "CancelRequest": ".._core.records.records",
            "Belief": ".._core.policies.selection",
            "Beliefs": "._store_port",
            "CacheRows": "._store_port",
            "Steering": "._store_port",
            "Rates": "._store_port",
            "Schedules": "._store_port",
            "BudgetClaim": ".._core.policies.shared_budgets",
            "BudgetShare": ".._core.policies.shared_budgets",
            "BudgetSnapshot": ".._core.policies.shared_budgets",
            "BudgetTold": ".._core.policies.shared_budgets:BudgetSnapshot",
            "Budgets": "._store_port",
            "Deadlines": "._store_port",
            "Events": "._store_port",
            "Evidence": ".._core.policies.selection",
            "Lease": ".._core.records.records",
            "RecordSummary": ".._core.views.record_summaries",
            "LightRecord": ".._core.views.record_summaries:RecordSummary",
            "MemoryStore": "._memory_store",
            "OpenPause": ".._core.records.records",
            "PostgresStore": ".postgres",
            "RECORD_VERSION": ".._core.records.records",
            "Record": ".._core.records.records",
            "RecordKind": ".._core.records.records",
            "RunArchive": "._store_port",
            "RunControl": "._store_port",
            "RunLabels": "._store_port",
            "RunLog": "._store_port",
            "RunQuery": ".._core.records.records",
            "RunScan": "._store_port",
            "RunTexts": "._store_port",
            "SqliteStore": ".sqlite",
            "Store": "._store_port",
            "StoredRun": ".._core.records.records",
            "StoredStatus": ".._core.records.records",
            "Transaction": "._store_port",
            "Verdict": "._store_port",
            "Wakes": "._store_port",
            "granted_share": ".._core.policies.shared_budgets",
            "grants": ".._core.policies.shared_budgets",
            "open_store": "._store_factory",
        },
    )
