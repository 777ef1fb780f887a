"""Bridge between the trio runtime and asyncio loops, threads and user code.

A name of this table is loaded with the first use of asyncio, or the first failure.
"""

from typing import TYPE_CHECKING

from .._core.lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .guest import current_guest as current_guest
    from .guest import end_orphans as end_orphans
    from .host_loop import library_hint as library_hint
    from .to_asyncio import AsyncioLoop as AsyncioLoop
    from .to_asyncio import helper_loop as helper_loop
    from .to_asyncio import stream_chunks as stream_chunks
else:
    __getattr__, __dir__ = _lazy_names(
        __name__,
        {
            "AsyncioLoop": ".to_asyncio",
            "current_guest": ".guest",
            "end_orphans": ".guest",
            "helper_loop": ".to_asyncio",
            "library_hint": ".host_loop",
            "stream_chunks": ".to_asyncio",
        },
    )
