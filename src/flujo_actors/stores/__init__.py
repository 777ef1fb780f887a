"""Places where runs survive their process: one port, three stores. Importing this imports no database driver.

Whoever writes a store of their own finds here what its methods take and return.
"""

from typing import TYPE_CHECKING

from .._lazy_names import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .._core.light_records import LightRecord as LightRecord
    from .._core.records import RECORD_VERSION as RECORD_VERSION
    from .._core.records import Admission as Admission
    from .._core.records import Append as Append
    from .._core.records import CancelRequest as CancelRequest
    from .._core.records import Lease as Lease
    from .._core.records import OpenPause as OpenPause
    from .._core.records import Record as Record
    from .._core.records import RecordKind as RecordKind
    from .._core.records import RunQuery as RunQuery
    from .._core.records import StoredRun as StoredRun
    from .._core.records import StoredStatus as StoredStatus
    from .._core.selection import Belief as Belief
    from .._core.selection import Evidence as Evidence
    from .._core.shared_budgets import BudgetClaim as BudgetClaim
    from .._core.shared_budgets import BudgetShare as BudgetShare
    from .._core.shared_budgets import BudgetTold as BudgetTold
    from .._core.shared_budgets import granted_share as granted_share
    from .._core.shared_budgets import grants as grants
    from ._memory import MemoryStore as MemoryStore
    from ._opening import open_store as open_store
    from ._port import Beliefs as Beliefs
    from ._port import Budgets as Budgets
    from ._port import Deadlines as Deadlines
    from ._port import RunArchive as RunArchive
    from ._port import RunControl as RunControl
    from ._port import RunLog as RunLog
    from ._port import RunScan as RunScan
    from ._port import RunTexts as RunTexts
    from ._port import Store as Store
    from ._port import Transaction as Transaction
    from ._port import Verdict as Verdict
    from .postgres import PostgresStore as PostgresStore
    from .sqlite import SqliteStore as SqliteStore
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Admission": ".._core.records",
            "Append": ".._core.records",
            "CancelRequest": ".._core.records",
            "Belief": ".._core.selection",
            "Beliefs": "._port",
            "BudgetClaim": ".._core.shared_budgets",
            "BudgetShare": ".._core.shared_budgets",
            "BudgetTold": ".._core.shared_budgets",
            "Budgets": "._port",
            "Deadlines": "._port",
            "Evidence": ".._core.selection",
            "Lease": ".._core.records",
            "LightRecord": ".._core.light_records",
            "MemoryStore": "._memory",
            "OpenPause": ".._core.records",
            "PostgresStore": ".postgres",
            "RECORD_VERSION": ".._core.records",
            "Record": ".._core.records",
            "RecordKind": ".._core.records",
            "RunArchive": "._port",
            "RunControl": "._port",
            "RunLog": "._port",
            "RunQuery": ".._core.records",
            "RunScan": "._port",
            "RunTexts": "._port",
            "SqliteStore": ".sqlite",
            "Store": "._port",
            "StoredRun": ".._core.records",
            "StoredStatus": ".._core.records",
            "Transaction": "._port",
            "Verdict": "._port",
            "granted_share": ".._core.shared_budgets",
            "grants": ".._core.shared_budgets",
            "open_store": "._opening",
        },
    )
