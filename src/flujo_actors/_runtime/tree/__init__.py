"""Tree of a run: tasks, each in its parent's nursery."""

from typing import TYPE_CHECKING

from ..._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .degraded_input import in_expected_form as in_expected_form
    from .degraded_input import input_in_expected_form as input_in_expected_form
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "in_expected_form": ".degraded_input",
            "input_in_expected_form": ".degraded_input",
        },
    )
