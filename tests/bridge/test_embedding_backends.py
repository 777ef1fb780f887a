"""`run()` and its siblings on the library that the steps are written for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
import sniffio
import trio
from embedding_hosts import each_host

from flujo_actors import DeclarationError, Flujo, LoopAlreadyRunning, Step

BACKENDS = ["trio", "asyncio"]


async def on_asyncio(data: Any) -> str:
    await asyncio.sleep(0)
    return f"{data} on {sniffio.current_async_library()}"


async def on_trio(data: Any) -> str:
    await trio.lowlevel.checkpoint()
    return f"{data} on {sniffio.current_async_library()}"


async def on_either(data: Any) -> str:
    await anyio.sleep(0)
    return f"{data} on {sniffio.current_async_library()}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_brings_the_loop_that_is_asked_for(backend: Any) -> None:
    """Steps written for a library run on it, from a program without a loop, as often as they are run."""
    own = on_asyncio if backend == "asyncio" else on_trio
    flujo = Flujo(Step("own", own) >> Step("either", on_either))
    results = [flujo.run(n, backend=backend) for n in (1, 2)]
    assert [result.output for result in results] == [f"{n} on {backend} on {backend}" for n in (1, 2)]


def test_run_is_a_trio_run_unless_somebody_says_otherwise() -> None:
    """The default is trio."""
    assert Flujo(Step("own", on_trio)).run(1).output == "1 on trio"


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_setting_says_which_loop_run_brings(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """In code or in the environment; what the call says goes before both."""
    step = Step("either", on_either)
    assert Flujo(step, settings={"run": {"backend": backend}}).run(1).output == f"1 on {backend}"
    assert Flujo(step, settings={"run.backend": backend}).run(1, backend="trio").output == "1 on trio"
    monkeypatch.setenv("FLUJO_RUN__BACKEND", backend)
    assert Flujo(step).run(1).output == f"1 on {backend}"


@pytest.mark.parametrize("backend", BACKENDS)
def test_resume_and_recover_take_a_backend_too(backend: Any, tmp_path: Path) -> None:
    """A run goes on where its steps can."""
    flujo = Flujo(Step.human_in_the_loop("ask", "?") >> Step("either", on_either), store=f"sqlite:///{tmp_path}/r.db")
    token = flujo.run(1, backend=backend).state_token
    assert flujo.resume(token, "yes", backend=backend).output == f"yes on {backend}"
    assert list(flujo.recover(backend=backend)) == []


@pytest.mark.parametrize("call", ["run", "resume", "recover"])
def test_an_unknown_backend_is_refused_with_the_names_of_both(call: str) -> None:
    """Before anything is run."""
    arguments = {"run": [1], "resume": ["token", "answer"], "recover": []}[call]
    with pytest.raises(ValueError, match="must be 'trio' or 'asyncio', not 'curio'"):
        getattr(Flujo(Step("either", on_either)), call)(*arguments, backend="curio")


def test_an_unknown_backend_in_the_settings_is_refused_when_the_flujo_is_made() -> None:
    """A wrong declaration fails when it is built."""
    with pytest.raises(DeclarationError, match=r"run\.backend must be 'trio' or 'asyncio', not 'curio'"):
        Flujo(Step("either", on_either), settings={"run.backend": "curio"})


@each_host
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_backend_helps_where_a_loop_runs(host: Any, backend: Any) -> None:
    """Blocking somebody's loop is refused, whatever loop was asked for."""

    async def main() -> None:
        Flujo(Step("either", on_either)).run(1, backend=backend)

    with pytest.raises(LoopAlreadyRunning, match=r"await flujo\.run_async"):
        host.run(main)
