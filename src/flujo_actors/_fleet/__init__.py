"""Fleet: tickets, and the engines (job queues, task brokers) that deliver them.

A name of this table is loaded with the first schedule, or with the first run of an evaluation.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .budget_ledger import child_budget as child_budget
    from .schedules import ScheduleInfo as ScheduleInfo
    from .schedules import backfill_schedule as backfill_schedule
    from .schedules import checked_schedule as checked_schedule
    from .schedules import declare_schedule as declare_schedule
    from .schedules import delete_schedule as delete_schedule
    from .schedules import given_context as given_context
    from .schedules import given_input as given_input
    from .schedules import in_zone as in_zone
    from .schedules import instants_of as instants_of
    from .schedules import pause_schedule as pause_schedule
    from .schedules import resume_schedule as resume_schedule
    from .schedules import schedule_info as schedule_info
    from .schedules import schedule_infos as schedule_infos
    from .schedules import trigger_schedule as trigger_schedule
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "ScheduleInfo": ".schedules",
            "backfill_schedule": ".schedules",
            "checked_schedule": ".schedules",
            "child_budget": ".budget_ledger",
            "declare_schedule": ".schedules",
            "delete_schedule": ".schedules",
            "given_context": ".schedules",
            "given_input": ".schedules",
            "in_zone": ".schedules",
            "instants_of": ".schedules",
            "pause_schedule": ".schedules",
            "resume_schedule": ".schedules",
            "schedule_info": ".schedules",
            "schedule_infos": ".schedules",
            "trigger_schedule": ".schedules",
        },
    )
