"""Which extra of the package brings a library that is not there."""

from __future__ import annotations

_EXTRAS = {
    "click": "cli",
    "rich": "cli",
    "yaml": "blueprints",
    "jinja2": "blueprints",
    "psycopg": "postgres",
    "psycopg_pool": "postgres",
    "procrastinate": "fleet",
    "starlette": "page",
    "sse_starlette": "page",
    "uvicorn": "page",
    "opentelemetry": "otel",
}


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """What to say of a library that was not installed; `None` if no extra has it."""
    library = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(library)
    if extra is None:
        return None
    return f"this command needs {library}, which comes with an extra: pip install 'flujo-actors[{extra}]'"
