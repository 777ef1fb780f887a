"""Evaluations of datasets: cases as durable runs, comparison with a baseline, gates.

A name of this table is loaded with the first report.
"""

from typing import TYPE_CHECKING

from ..._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .case_runs import pydantic_report as pydantic_report
    from .reports import json_report as json_report
    from .reports import junit_report as junit_report
    from .reports import markdown_report as markdown_report
    from .reports import text_report as text_report
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "json_report": ".reports",
            "junit_report": ".reports",
            "markdown_report": ".reports",
            "pydantic_report": ".case_runs",
            "text_report": ".reports",
        },
    )
