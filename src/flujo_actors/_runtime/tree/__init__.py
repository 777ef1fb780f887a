"""Tree of a run: tasks, each in its parent's nursery."""

from typing import TYPE_CHECKING

from ..._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .degraded_input import as_asked as as_asked
    from .degraded_input import input_as_asked as input_as_asked
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "as_asked": ".degraded_input",
            "input_as_asked": ".degraded_input",
        },
    )
