"""Stored records: codecs, bodies, and run state built from them.

A name of this table is loaded with the first value to store, or the first assembled context.
"""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .assembled import AssembledContext as AssembledContext
    from .json_codec import json_of as json_of
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "AssembledContext": ".assembled",
            "json_of": ".json_codec",
        },
    )
