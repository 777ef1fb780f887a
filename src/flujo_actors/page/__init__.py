"""The run page: every run of a store in a browser, live and past, to be watched, answered, cancelled and forked.

`app.mount("/runs", run_page(store))` in any ASGI application; `flujo-actors page` by itself. Needs the extra `page`.
"""

from ._app import run_page as run_page
from ._form import answer_form as answer_form
from ._guard import HOST_APP as HOST_APP

__all__ = ["HOST_APP", "answer_form", "run_page"]
