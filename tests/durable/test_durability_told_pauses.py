"""Whoever is told of a pause can answer it from that moment on: in memory and stored, on both libraries."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from flujo_actors import (
    Aborted,
    Backoff,
    Flujo,
    NotPaused,
    OnPause,
    Paused,
    Pipeline,
    PostStep,
    RunClient,
    RunLeased,
    Step,
)
from flujo_actors._core.step_paths import StepPath, at_or_below
from flujo_actors._durable import claims
from kit import preloaded
from kit.durable_places import Place

ASK = Step.human_in_the_loop("ask", "Publish?")


@pytest.fixture(params=["trio", "asyncio"])
def on_host(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Runs an async main function on each library."""
    return lambda main: anyio.run(main, backend=request.param)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Nothing, or a store of each kind."""
    if request.param == "memory":
        yield None
    else:
        place: Place = request.getfixturevalue(f"{request.param}_place")
        yield place.open()


def shapes() -> dict[str, Any]:
    """The question at different depths."""
    body = Pipeline((ASK, Step("after", lambda answer: answer)), name="body")
    return {
        "top": ASK,
        "pipeline": body,
        "branch": Step.branch_on("b", lambda data, context: "x", {"x": body}),
        "loop": Step.loop_until("l", body, lambda output, context: True),
        "map": Step.map_over("m", body, items=[1]),
        "parallel": Step.parallel("p", {"x": body, "y": Step("beside", lambda data: data)}),
        "deep": Step.parallel("p", {"x": Step.map_over("m", Step.parallel("q", {"z": body}), items=[1])}),
    }


@pytest.mark.parametrize("shape", list(shapes()))
def test_a_reader_that_leaves_at_a_pause_leaves_a_paused_run(on_host: Any, store: Any, shape: str) -> None:
    """The token that it has is good, and the run goes on with the answer."""
    flujo = Flujo(shapes()[shape] >> Step("end", lambda data: data), store=store)

    async def main() -> None:
        async with flujo.run_async("draft", run_id="run") as run:
            async for outcome in run:
                if isinstance(outcome, Paused):
                    break
        if store is not None:
            assert RunClient(store, allow_blocking=True).get("run").status == "paused"
        assert (await flujo.resume_async(outcome.state_token, "yes")).status == "completed"

    on_host(main)


def test_a_reader_may_answer_before_it_leaves(on_host: Any, store: Any) -> None:
    """While the run that asked is still open, and whoever reads it has not gone on."""
    flujo = Flujo(ASK >> Step("end", lambda data: data), store=store)

    async def main() -> None:
        async with flujo.run_async("draft") as run:
            async for outcome in run:
                if isinstance(outcome, Paused):
                    assert (await flujo.resume_async(outcome.state_token, "yes")).output == "yes"
            assert (await run).status == "paused"

    on_host(main)


@pytest.mark.parametrize("kind", [OnPause, PostStep])
@pytest.mark.parametrize("shape", list(shapes()))
def test_a_hook_may_answer_the_pause_it_is_told_of(on_host: Any, store: Any, shape: str, kind: Any) -> None:
    """By going on with the run then and there; whoever started the run is told that it paused."""
    finished = []

    async def approve(payload: Any) -> None:
        if isinstance(payload.outcome, Paused) and not finished:
            finished.append(await flujo.resume_async(payload.outcome.state_token, "yes"))

    approve.__annotations__["payload"] = kind
    flujo = Flujo(shapes()[shape], store=store, hooks=approve)

    async def main() -> None:
        assert (await flujo.run_async("draft")).status == "paused"

    on_host(main)
    assert [result.status for result in finished] == ["completed"]


def test_a_run_is_paused_when_its_hooks_are_told_so(place: Place) -> None:
    """The listing says so, a client can answer, and the run goes on with that."""
    client, seen = RunClient(place.open(), allow_blocking=True), []

    def answer(payload: OnPause) -> None:
        seen.append(client.get(payload.run_id).status)
        client.answer(payload.outcome.state_token or "", "yes")

    flujo = Flujo(ASK, store=place.open(), hooks=answer)
    assert flujo.run("draft", run_id="run").status == "paused"
    assert seen == ["paused"]
    assert flujo.resume("run").output == "yes"


OTHER_PROGRAM = """
import sys
from flujo_actors import Flujo, OnPause, Step

def announce(payload: OnPause) -> None:
    print(payload.outcome.state_token, flush=True)
    sys.stdin.readline()

pipeline = Step.human_in_the_loop("ask", "Publish?") >> Step("end", lambda data: data)
if len(sys.argv) == 2:
    print(Flujo(pipeline, store=sys.argv[1], hooks=announce).run("draft").status)
else:
    print(Flujo(pipeline, store=sys.argv[1]).resume(sys.argv[2], "yes").status)
"""


@pytest.mark.slow
def test_another_process_may_finish_a_run_that_is_still_telling_of_its_pause(tmp_path: Path) -> None:
    """The first process waits in its hook, the second one completes the run, and the first one ends in peace."""
    (tmp_path / "program.py").write_text(OTHER_PROGRAM)
    url = f"sqlite:///{tmp_path}/runs.db"
    first = preloaded.Popen(
        [sys.executable, "program.py", url], cwd=tmp_path, stdin=preloaded.PIPE, stdout=preloaded.PIPE, text=True
    )
    assert first.stdout is not None
    token = first.stdout.readline().strip()
    second = [sys.executable, "program.py", url, token]
    assert preloaded.run(second, cwd=tmp_path, capture_output=True, text=True).stdout == "completed\n"
    assert first.communicate("go on\n", timeout=120)[0] == "paused\n"


# --- beside other work --------------------------------------------------------------------------------------


def beside_ask(told: Any) -> Step:
    """The question, and a sibling that is at work until somebody was told of it."""

    async def slow(data: Any) -> str:
        await told.wait()
        return "slow"

    return Step.parallel("p", {"x": ASK, "y": Step("slow", slow)})


def test_who_goes_on_with_a_run_waits_for_siblings_at_work(
    on_host: Any, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is taken at once, and used when they are done; who does not want to wait is told before that."""
    monkeypatch.setattr(claims, "_CLEANUP_S", 0.0)  # what others are given who want a run of this process
    results = []

    async def main() -> None:
        told = anyio.Event()
        flujo = Flujo(beside_ask(told), store=store)

        async def go_on(token: str) -> None:
            results.append(await flujo.resume_async(token, "yes"))

        async with anyio.create_task_group() as group, flujo.run_async("draft") as run:
            async for outcome in run:
                if isinstance(outcome, Paused) and not told.is_set():
                    with pytest.raises(RunLeased):
                        await flujo.resume_async(outcome.state_token, "no", wait=False)
                    group.start_soon(go_on, outcome.state_token)
                    while store is not None and RunClient(store, allow_blocking=True).prompts():
                        await anyio.sleep(0.01)
                    await anyio.sleep(0.05)
                    told.set()
            assert (await run).status == "paused"

    on_host(main)
    assert [result.output for result in results] == [{"x": "yes", "y": "slow"}]


def test_a_client_may_answer_while_siblings_are_at_work(on_host: Any, place: Place) -> None:
    """The answer is kept, and used by whoever goes on with the run."""
    client = RunClient(place.open(), allow_blocking=True)

    async def main() -> None:
        told = anyio.Event()
        flujo = Flujo(beside_ask(told), store=place.open())
        async for outcome in flujo.run_async("draft", run_id="run"):
            if isinstance(outcome, Paused) and not told.is_set():
                client.answer(outcome.state_token or "", "yes")
                told.set()
        assert (await flujo.resume_async("run")).output == {"x": "yes", "y": "slow"}

    on_host(main)


def test_a_reader_may_leave_at_a_pause_while_siblings_are_at_work(on_host: Any, store: Any) -> None:
    """They are cut short and done again when the run goes on; the question stays asked."""
    calls = []

    async def slow(data: Any) -> str:
        calls.append(data)
        if len(calls) == 1:
            await anyio.sleep_forever()
        return "slow"

    flujo = Flujo(Step.parallel("p", {"x": ASK, "y": Step("slow", slow)}), store=store)

    async def main() -> None:
        async with flujo.run_async("draft", run_id="run") as run:
            async for outcome in run:
                if isinstance(outcome, Paused):
                    break
        if store is not None:
            assert [each.state_token for each in RunClient(store, allow_blocking=True).prompts()] == [
                outcome.state_token
            ]
        result = await flujo.resume_async(outcome.state_token, "yes")
        assert result.output == {"x": "yes", "y": "slow"}

    on_host(main)


def test_questions_of_an_attempt_that_failed_are_withdrawn(place: Place) -> None:
    """The stage tries again and asks again; of the first question nobody is told, and nobody can answer it."""
    attempts = []

    async def flaky(data: Any) -> str:
        attempts.append(data)
        if len(attempts) == 1:
            raise ConnectionError("not yet")
        return "there"

    stage = Step.parallel("p", {"x": ASK, "y": Step("flaky", flaky)}, max_retries=1, backoff=Backoff.none())
    flujo, told = Flujo(stage, store=place.open()), []

    async def main() -> None:
        async for outcome in flujo.run_async("draft", run_id="run"):
            told.extend([outcome.state_token] if isinstance(outcome, Paused) else [])

    trio.run(main)
    [prompt] = RunClient(place.open(), allow_blocking=True).prompts()
    assert set(told) == {prompt.state_token}
    assert flujo.resume(prompt.state_token, "yes").output == {"x": "yes", "y": "there"}


def test_a_hook_may_end_a_run_that_rests_at_a_pause(on_host: Any, store: Any) -> None:
    """Its word comes after the run was put away, and holds all the same: nothing waits any more."""

    def refuse(payload: OnPause) -> Aborted:
        return Aborted(reason="nobody is there to ask")

    flujo = Flujo(ASK, store=store, hooks=refuse)

    async def main() -> None:
        result = await flujo.run_async("draft", run_id="run")
        assert (result.status, result.feedback) == ("aborted", "nobody is there to ask")
        with pytest.raises(NotPaused):
            await flujo.resume_async("run")

    on_host(main)
    if store is not None:
        assert RunClient(store, allow_blocking=True).get("run").status == "aborted"


def test_a_resume_that_is_cancelled_does_not_lose_the_run(on_host: Any, store: Any) -> None:
    """The answer was taken: the run goes on with it when it is resumed by its id."""
    calls = []

    async def publish(answer: str) -> str:
        calls.append(answer)
        if len(calls) == 1:
            await anyio.sleep_forever()
        return answer

    flujo = Flujo(ASK >> Step("publish", publish), store=store)

    async def main() -> None:
        token = (await flujo.run_async("draft", run_id="run")).state_token
        async with flujo.resume_async(token, "yes"):
            while not calls:
                await anyio.sleep(0.001)
        assert (await flujo.resume_async("run")).output == "yes"

    on_host(main)
    assert calls == ["yes", "yes"]


# --- beside failures ----------------------------------------------------------------------------------------


async def broken(data: Any) -> Any:
    """An optional source that is down."""
    raise ConnectionError("the source is down")


def patient(**branches: Any) -> Step:
    """Branches whose failures are ignored."""
    return Step.parallel("p", branches, on_branch_failure="ignore")


def test_a_branch_that_waits_is_alive_where_failures_are_ignored(store: Any) -> None:
    """All others failed: the run is paused, and completes with the answer."""
    flujo = Flujo(patient(editor=ASK, source=Step("source", broken)), store=store)
    result = flujo.run("draft")
    assert (result.status, result.feedback) == ("paused", "Publish?")
    done = flujo.resume(result.state_token, "yes")
    assert (done.status, done.output) == ("completed", {"editor": "yes"})
    assert list(done.step_history[0].metadata["failed_branches"]) == ["source"]


def test_a_branch_that_fails_after_its_answer_leaves_its_siblings_their_questions(store: Any) -> None:
    """They are asked on; if the last one fails too, nobody is left and the stage fails."""
    left = Step.human_in_the_loop("left", "left?") >> Step("broken left", broken)
    right = Step.human_in_the_loop("right", "right?") >> Step("use", _refuse_no)
    flujo = Flujo(patient(left=left, right=right), store=store)
    for answer, status in (("yes", "completed"), ("no", "failed")):
        paused = flujo.run("draft")
        still = flujo.resume(paused.state_token, "any")
        assert (still.status, still.feedback) == ("paused", "right?")
        assert flujo.resume(still.state_token, answer).status == status


async def _refuse_no(answer: str) -> str:
    if answer == "no":
        raise ValueError(answer)
    return answer


@pytest.mark.parametrize("inner", ["parallel", "map"])
def test_a_stage_that_waits_inside_another_counts_as_alive_there(store: Any, inner: str) -> None:
    """At any depth."""
    stage: Any = (
        patient(ask=ASK, bad=Step("bad", broken)) if inner == "parallel" else Step.map_over("m", ASK, items=[1])
    )
    flujo = Flujo(Step.parallel("outer", {"x": stage, "y": Step("y", broken)}, on_branch_failure="ignore"), store=store)
    result = flujo.run("draft")
    assert result.status == "paused"
    assert flujo.resume(result.state_token, "yes").status == "completed"


def test_the_places_of_questions_are_paths() -> None:
    """A step's own place and what is inside it, and nothing that only begins with the same letters."""
    places = [StepPath(text) for text in ("a", "a/b", "ab", "ab/c")]
    assert at_or_below(StepPath("a/~t"), places) == ["a", "a/b"]
