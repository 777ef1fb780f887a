"""`flujo-actors page`: standalone run page, on loopback or with a token."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypedDict, Unpack

import click
import uvicorn
from starlette.applications import Starlette

from ...errors import DeclarationError
from ...page import run_page
from ...page._auth import OneTimeLink
from .command_group import Invocation, pass_call

if TYPE_CHECKING:
    from starlette.applications import Starlette


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a listening socket; raise `DeclarationError` for an unavailable port or host."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        opened = socket.create_server((host, port), family=family)
    except (OSError, OverflowError) as error:
        raise DeclarationError(f"cannot listen on {host}:{port}: {error}") from error
    with opened:
        yield opened


def serve(app: Starlette, listener: socket.socket) -> int:
    """Serve until a stop signal, then let open streams end."""
    config = uvicorn.Config(app, log_level="warning", ws="none", timeout_graceful_shutdown=2)
    uvicorn.Server(config).run(sockets=[listener])
    return 0


_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


class _Shown(TypedDict):
    """Permissions and visibility of the page."""

    read_only: bool
    no_content: bool


@click.command()
@click.option("--store", metavar="URL", help="Store of the shown runs; default from flujo.toml or FLUJO_STORE.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="NAME", help="Where to listen.")
@click.option("--port", default=8400, show_default=True, metavar="N", help="On which port; 0 takes a free one.")
@click.option("--token", metavar="TEXT", help="Who has it may see the page; needed to listen beyond this machine.")
@click.option("--read-only", is_flag=True, help="Show runs, and change nothing.")
@click.option("--no-content", is_flag=True, help="Show the structure of runs without their content.")
@pass_call
def page(
    call: Invocation, /, store: str | None, host: str, port: int, token: str | None, **options: Unpack[_Shown]
) -> int:
    """Show the runs of a store in a browser.

    Prints the address to open. Without --token it is a link that opens the page once, on this machine, and is
    remembered by the browser that used it.
    """
    if host not in _LOOPBACK and not token:
        raise DeclarationError(f"--host {host} serves other machines: pass --token")
    address = store or call.settings().store
    if not address:
        raise DeclarationError('no store is named: pass --store URL, or set FLUJO_STORE or store = "…" in flujo.toml')
    key = token or secrets.token_urlsafe(24)
    return _serve(_app(address, key, once=token is None, **options), host, port, key)


serve_page = click.Command(
    "serve",
    callback=page.callback,
    params=[*page.params],
    help=f"Serve the run page: an alias of `page`.{(page.help or '').partition('.')[2]}",
)


def _app(address: str, key: str, *, once: bool, read_only: bool, no_content: bool) -> Starlette:
    auth = OneTimeLink(key) if once else key
    return run_page(address, auth=auth, read_only=read_only, content=not no_content)


def _serve(app: Starlette, host: str, port: int, key: str) -> int:
    with listening(host, port) as socket:
        shown = f"[{host}]" if ":" in host else host
        click.echo(f"http://{shown}:{socket.getsockname()[1]}/?token={key}")
        return serve(app, socket)
