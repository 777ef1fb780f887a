"""The FastAPI example, spoken to over real HTTP."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
from served import served

import fastapi_app
from flujo_actors import Aborted, Chunk, Failure, Paused, Step, StepOutcome, Success, from_json


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    """The example application as it ships, on each kind of loop."""
    if request.param == "uvloop":
        pytest.importorskip("uvloop")
    with served(fastapi_app.make_app(), loop=request.param) as url:
        yield url


def outcomes(response: httpx.Response) -> Iterator[StepOutcome]:
    """The outcomes in a stream of server-sent events."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield from_json(line.removeprefix("data: "), StepOutcome)


def post(url: str, **body: Any) -> list[StepOutcome]:
    """All outcomes that one request streams."""
    with httpx.stream("POST", url, json=body, timeout=120) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        return list(outcomes(response))


def test_a_draft_is_streamed_and_then_waits_for_the_editor(address: str) -> None:
    """Chunks come first, then the step's success, then the pause with its token."""
    *chunks, success, paused = post(f"{address}/drafts", topic="tea")
    assert "".join(chunk.data for chunk in chunks) == success.step_result.output
    assert all(isinstance(chunk, Chunk) for chunk in chunks)
    assert isinstance(success, Success)
    assert isinstance(paused, Paused)
    assert paused.state_token


def test_the_editors_answer_continues_the_run(address: str) -> None:
    """The second request streams the rest of the run that the first one began."""
    token = post(f"{address}/drafts", topic="tea")[-1].state_token
    editor, publish = post(f"{address}/answers", token=token, answer=True)
    assert editor.step_result.output is True
    assert publish.step_result.output == "published"


def test_a_bad_answer_is_refused_and_the_run_stays_paused(address: str) -> None:
    """Refused answers are HTTP errors with the reason; a good answer still works afterwards, once."""
    token = post(f"{address}/drafts", topic="tea")[-1].state_token
    refused = httpx.post(f"{address}/answers", json={"token": token, "answer": "perhaps"})
    assert (refused.status_code, "input_schema" in refused.text) == (422, True)
    assert post(f"{address}/answers", token=token, answer=False)[-1].step_result.output == "binned"
    again = httpx.post(f"{address}/answers", json={"token": token, "answer": False})
    assert again.status_code == 409


class EndlessWriter:
    """A step that streams until it is cancelled, and tells when it was."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.cleaned_up = threading.Event()

    async def stream(self, topic: str) -> AsyncIterator[str]:
        try:
            while True:
                yield topic
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        finally:
            await asyncio.sleep(0.01)
            self.cleaned_up.set()


class SilentWorker:
    """A step that says nothing and never ends, behind one that succeeds."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()

    async def run(self, topic: str) -> str:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise
        return topic


def hang_up_after_the_first_outcome(url: str) -> StepOutcome:
    with httpx.stream("POST", url, json={"topic": "tea"}, timeout=120) as response:
        return next(outcomes(response))


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_client_that_hangs_up_cancels_the_stream(loop: str) -> None:
    """The step that was streaming is cancelled and cleans up, while the server goes on."""
    writer = EndlessWriter()
    with served(fastapi_app.make_app(Step("write", writer)), loop=loop) as url:
        assert isinstance(hang_up_after_the_first_outcome(f"{url}/drafts"), Chunk)
        assert writer.cancelled.wait(120)
        assert writer.cleaned_up.wait(120)
        assert httpx.get(f"{url}/openapi.json").status_code == 200


def test_a_client_that_hangs_up_cancels_a_step_that_says_nothing() -> None:
    """The disconnection reaches a step although nothing is being sent."""

    async def begin(topic: str) -> str:
        return topic

    worker = SilentWorker()
    with served(fastapi_app.make_app(Step("begin", begin) >> Step("work", worker))) as url:
        assert isinstance(hang_up_after_the_first_outcome(f"{url}/drafts"), Success)
        assert worker.cancelled.wait(120)


def test_a_failing_step_is_an_event_like_any_other() -> None:
    """A failure crosses the wire as data: the exception becomes its description."""

    async def fail(topic: str) -> str:
        raise ValueError(f"nothing to say about {topic}")

    with served(fastapi_app.make_app(Step("write", fail))) as url:
        (failure,) = post(f"{url}/drafts", topic="tea")
    assert isinstance(failure, Failure)
    assert failure.feedback == "Agent execution failed with ValueError: nothing to say about tea"
    assert failure.error.type_name == "ValueError"
    assert not isinstance(failure, Aborted)


def test_the_runs_are_shown_on_a_page_and_answered_there(address: str) -> None:
    """The page is mounted in the application, over the store that its pipeline has."""
    paused = post(f"{address}/drafts", topic="chai")[-1]
    assert isinstance(paused, Paused)
    assert "<title>Runs</title>" in httpx.get(f"{address}/runs/").text
    body = {"token": paused.state_token, "answer": True}
    answer = httpx.post(f"{address}/runs/api/answer", json=body, headers={"origin": address}, timeout=120)
    assert answer.status_code == 204
    run_id = next(run["run_id"] for run in httpx.get(f"{address}/runs/api/runs").json()["runs"])
    with httpx.stream("GET", f"{address}/runs/api/events?run={run_id}", timeout=120) as stream:
        told = "".join(stream.iter_text())
    assert "event: end" in told
