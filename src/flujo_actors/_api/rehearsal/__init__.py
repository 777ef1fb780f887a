"""Replay and rehearsal: stored runs on changed code, without effects.

A name of this table is loaded with the first replay or rehearsal.
"""

from typing import TYPE_CHECKING

from ..._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from ..evaluation.case_runs import Judge as Judge
    from ..evaluation.case_runs import context_of as context_of
    from ..evaluation.case_runs import require_evals as require_evals
    from .playback import performer_of as performer_of
    from .rehearsal import RehearsalOptions as RehearsalOptions
    from .rehearsal import rehearsed as rehearsed
    from .rehearsal import replayed as replayed
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "Judge": "..evaluation.case_runs",
            "RehearsalOptions": ".rehearsal",
            "context_of": "..evaluation.case_runs",
            "performer_of": ".playback",
            "rehearsed": ".rehearsal",
            "replayed": ".rehearsal",
            "require_evals": "..evaluation.case_runs",
        },
    )
