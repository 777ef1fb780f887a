"""Pure core: values and decisions.

Standard library, attrs and cattrs only; no trio, no clock, no I/O. The class of all settings is loaded on use. The
messages of model agents are read and written by `_agents`, which the core reaches by name only.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .cron import cron_error as cron_error
    from .cron import is_ambiguous as is_ambiguous
    from .cron import local_time as local_time
    from .cron import zone_named as zone_named
    from .model_messages import ModelMessage
    from .settings_model import Settings as Settings

    messages_in: Callable[[str | bytes], tuple[ModelMessage, ...]]
    text_of_messages: Callable[[Any], str]
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Settings": ".settings_model",
            "cron_error": ".cron",
            "is_ambiguous": ".cron",
            "local_time": ".cron",
            "zone_named": ".cron",
            "messages_in": ".._agents.compaction",
            "text_of_messages": ".._agents.compaction",
        },
    )
