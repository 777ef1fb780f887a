"""Runs in a terminal: a finished one as a tree, a live one as a few lines that change, one of another process too.

`draw` needs nothing; the live views need the extra `cli` (`pip install flujo-actors[cli]`).
"""

from ._drawing import draw as draw
from ._modes import Progress as Progress
from ._watching import tail as tail
from ._watching import watch as watch

__all__ = ["Progress", "draw", "tail", "watch"]
