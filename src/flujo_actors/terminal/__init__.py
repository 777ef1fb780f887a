"""Terminal views of runs: a tree, or live changing lines.

`draw` needs nothing; the live views need the extra `cli` (`pip install 'flujo-actors[cli]'`).
"""

from ._renderers import Progress as Progress
from ._watch_view import draw as draw
from ._watch_view import tail as tail
from ._watch_view import watch as watch

__all__ = ["Progress", "draw", "tail", "watch"]
