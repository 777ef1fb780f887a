"""Read models of a run: summaries, trees and live rows.

`drawn` and `as_html` are imported when a result is printed.
"""

from typing import TYPE_CHECKING

from ..lazy_exports import lazy_names as _lazy_names

if TYPE_CHECKING:
    from .result_tree import as_html as as_html
    from .result_tree import drawn as drawn
else:
    __getattr__, __dir__ = _lazy_names(__name__, {"as_html": ".result_tree", "drawn": ".result_tree"})
