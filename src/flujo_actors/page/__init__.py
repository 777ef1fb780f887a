"""Run page: live and past runs of a store in a browser.

`app.mount("/runs", run_page(store))` in any ASGI application; `flujo-actors page` by itself. Needs the extra `page`.
"""

from .._core.lazy_exports import missing_extra

try:
    from ._app import run_page as run_page
    from ._auth import HOST_APP as HOST_APP
    from ._event_app import event_app as event_app
    from ._form import answer_form as answer_form
except ModuleNotFoundError as _missing:
    raise missing_extra(_missing, extra="page", needed_by="flujo_actors.page") from _missing

__all__ = ["HOST_APP", "answer_form", "event_app", "run_page"]
