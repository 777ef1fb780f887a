"""Model agents: pydantic-ai on the runtime.

A name of this table is loaded with the first model agent of a durable run.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .agent_factory import approved_tool as approved_tool
    from .output_schema import output_types as output_types
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "approved_tool": ".agent_factory",
            "output_types": ".output_schema",
        },
    )
