"""Hooks: who is told what, in which order, and what they can and cannot do."""

from __future__ import annotations

import functools
import logging
from typing import Annotated, Any, Optional

import pytest
import trio
from scripted import AT_ONCE, PLACES, Scripted, failing, nested, same, spent

from flujo_actors import (
    Aborted,
    Failure,
    Flujo,
    OnPause,
    OnStepFailure,
    Paused,
    Pipeline,
    PipelineResult,
    PostRun,
    PostStep,
    PreRun,
    PreStep,
    Step,
    Success,
)
from flujo_actors.errors import AbortRun, DeclarationError, UsageLimitExceededError

MOMENTS = ["pre_run", "pre_step", "post_step", "on_step_failure", "on_pause", "post_run"]


class Diary:
    """A hook that writes down what it is told."""

    def __init__(self) -> None:
        self.payloads: list[Any] = []

    def __call__(self, payload: Any) -> None:
        self.payloads.append(payload)

    @property
    def entries(self) -> list[str]:
        return [f"{each.kind} {getattr(each, 'step_name', '')}".strip() for each in self.payloads]


@pytest.mark.trio
async def test_hooks_are_told_every_moment_in_order(autojump_clock: Any) -> None:
    """From before the run to after it; a failed step is told of before the final result."""
    diary = Diary()
    await Flujo(Step("a", same) >> Step("b", failing()), hooks=[diary]).run_async(1)
    assert diary.entries == [
        "pre_run",
        "pre_step a",
        "post_step a",
        "pre_step b",
        "post_step b",
        "on_step_failure b",
        "post_run",
    ]
    assert len({each.run_id for each in diary.payloads}) == 1


@pytest.mark.trio
async def test_payloads_know_what_the_moment_knows(autojump_clock: Any) -> None:
    """`step_name` and `outcome` for steps, `result` after the run; the run id everywhere."""
    diary = Diary()
    flujo = Flujo(Step("a", same) >> Step("b", failing("why")), hooks=diary)
    result = await flujo.run_async("in", run_id="my run")
    by_kind = {each.kind: each for each in diary.payloads}
    assert all(each.run_id == "my run" for each in diary.payloads)
    assert (by_kind["pre_run"].input, by_kind["pre_step"].input) == ("in", "in")
    assert isinstance(diary.payloads[2].outcome, Success)
    assert isinstance(by_kind["post_step"].outcome, Failure)
    assert str(by_kind["on_step_failure"].outcome.error) == "why"
    assert by_kind["post_run"].result == result


@pytest.mark.trio
async def test_a_pause_is_told(autojump_clock: Any) -> None:
    """With the token; after the answer the run goes on without a second `pre_run`, and ends with `post_run`."""
    diary = Diary()
    flujo = Flujo(Step.human_in_the_loop("ask", "ok?") >> Step("b", same), hooks=diary)
    result = await flujo.run_async(1)
    assert diary.entries == ["pre_run", "pre_step ask", "post_step ask", "on_pause ask", "post_run"]
    assert diary.payloads[3].outcome == Paused(message="ok?", state_token=result.state_token)
    assert diary.payloads[-1].result.status == "paused"
    diary.payloads.clear()
    await flujo.resume_async(result.state_token, "yes")
    assert diary.entries[-3:] == ["pre_step b", "post_step b", "post_run"]
    assert "pre_run" not in diary.entries


@pytest.mark.trio
async def test_hooks_may_be_async_and_the_run_waits(autojump_clock: Any) -> None:
    """In the order of their declaration."""
    order: list[str] = []

    async def slow(payload: Any) -> None:
        await trio.sleep(1)
        order.append(f"slow {payload.kind}")

    def quick(payload: Any) -> None:
        order.append(f"quick {payload.kind}")

    begun = trio.current_time()
    await Flujo(Step("a", same), hooks=[slow, quick]).run_async(1)
    assert order == [
        f"{who} {kind}" for kind in ("pre_run", "pre_step", "post_step", "post_run") for who in ("slow", "quick")
    ]
    assert trio.current_time() - begun == pytest.approx(4)


# --- who is told what ---------------------------------------------------------------------------------------


def run_with(*hooks: Any) -> None:
    """A run with every moment in it."""
    pipeline = (
        Step("bad", failing(), fallback=Step("f", same))
        >> Step.parallel("p", {"x": Step("worse", failing()), "y": Step("ok", same)}, on_branch_failure="ignore")
        >> Step.human_in_the_loop("ask", "?")
    )
    Flujo(pipeline, hooks=hooks).run(1)


@pytest.mark.parametrize("kind", [PreRun, PreStep, PostStep, OnStepFailure, OnPause, PostRun])
def test_an_annotated_hook_gets_only_that_payload(kind: type) -> None:
    """As function, async function, method, callable object and partial."""
    told: dict[str, list[Any]] = {name: [] for name in ("function", "coroutine", "method", "object", "partial")}

    def function(payload: kind) -> None:  # type: ignore[valid-type]
        told["function"].append(payload)

    async def coroutine(payload: kind) -> None:  # type: ignore[valid-type]
        told["coroutine"].append(payload)

    class Hook:
        def method(self, payload: kind) -> None:  # type: ignore[valid-type]
            told["method"].append(payload)

        def __call__(self, payload: kind) -> None:  # type: ignore[valid-type]
            told["object"].append(payload)

    def labelled(label: str, payload: kind) -> None:  # type: ignore[valid-type]
        told[label].append(payload)

    for fn in (function, coroutine, Hook.method, Hook.__call__, labelled):
        fn.__annotations__["payload"] = kind
    run_with(function, coroutine, Hook().method, Hook(), functools.partial(labelled, "partial"))
    for name, payloads in told.items():
        assert payloads, name
        assert {type(each) for each in payloads} == {kind}, name


def test_annotations_may_be_texts_unions_or_wider() -> None:
    """This module's annotations are texts; a union names several, no known payload type means all."""
    told: dict[str, set[str]] = {}

    def note(name: str, payload: Any) -> None:
        told.setdefault(name, set()).add(payload.kind)

    def text(payload: PreStep) -> None:
        note("text", payload)

    def union(payload: PreRun | PostRun) -> None:
        note("union", payload)

    def optional(payload: Optional[OnPause]) -> None:  # noqa: UP045 - the older spelling must work as well
        note("optional", payload)

    def annotated(payload: Annotated[OnStepFailure, "why"]) -> None:
        note("annotated", payload)

    def anything(payload: Any) -> None:
        note("anything", payload)

    def nothing(payload) -> None:  # type: ignore[no-untyped-def]
        note("nothing", payload)

    def unknown(payload: NotImportedHere) -> None:  # type: ignore[name-defined]  # noqa: F821
        note("unknown", payload)

    run_with(text, union, optional, annotated, anything, nothing, unknown)
    assert told == {
        "text": {"pre_step"},
        "union": {"pre_run", "post_run"},
        "optional": {"on_pause"},
        "annotated": {"on_step_failure"},
        "anything": set(MOMENTS),
        "nothing": set(MOMENTS),
        "unknown": set(MOMENTS),
    }


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
async def test_every_failed_step_is_told_exactly_once(autojump_clock: Any, place: tuple[str, str]) -> None:
    """Once per step that failed, retries or not, each before the run's end, children before parents."""
    diary = Diary()
    leaf = Step("leaf", failing(), max_retries=2, backoff=AT_ONCE)
    await Flujo(nested(place, leaf), hooks=diary).run_async(1)
    failed = [each for each in diary.payloads if each.kind == "on_step_failure"]
    paths = [each.path for each in failed]
    assert len(set(paths)) == len(paths)
    assert failed[0].step_name == "leaf"
    assert sorted(paths, key=len, reverse=True) == paths
    settled = [each.path for each in diary.payloads if each.kind == "post_step" and isinstance(each.outcome, Failure)]
    assert settled == paths
    assert diary.entries[-1] == "post_run"


@pytest.mark.trio
async def test_a_step_rescued_by_its_fallback_did_not_fail(autojump_clock: Any) -> None:
    """Only steps whose outcome is a failure are told."""
    diary = Diary()
    await Flujo(Step("a", failing(), fallback=Step("f", same)), hooks=diary).run_async(1)
    assert "on_step_failure" not in {each.kind for each in diary.payloads}


@pytest.mark.trio
async def test_every_started_step_is_told_to_have_ended(autojump_clock: Any) -> None:
    """A branch that is cut short settles as `Aborted`, and `post_step` says so."""
    diary, begun_slow = Diary(), trio.Event()

    async def slow(data: Any) -> None:
        begun_slow.set()
        await trio.sleep(60)

    async def bad(data: Any) -> None:
        await begun_slow.wait()
        raise ValueError("broken")

    inner = Pipeline((Step("slow", slow),), name="inner")
    branches = {"inner": inner, "bad": Step("bad", bad)}
    await Flujo(Step.parallel("p", branches), hooks=diary).run_async(1)
    begun = [each.path for each in diary.payloads if each.kind == "pre_step"]
    ended = [each.path for each in diary.payloads if each.kind == "post_step"]
    assert sorted(begun) == sorted(ended)
    by_name = {each.step_name: each.outcome for each in diary.payloads if each.kind == "post_step"}
    assert isinstance(by_name["slow"], Aborted)
    assert isinstance(by_name["inner"], Aborted)


@pytest.mark.trio
@pytest.mark.parametrize("how", ["sibling", "timeout"])
@pytest.mark.parametrize("veto", ["abort", "control"])
async def test_a_hook_may_object_when_a_step_was_cut_short(autojump_clock: Any, how: str, veto: str) -> None:
    """Its veto counts as at any other moment: nothing is tried again."""
    agent, standby = Scripted(ValueError("no")), Scripted("never")

    async def slow(data: Any) -> None:
        await trio.sleep(60)

    def hook(payload: PostStep) -> Any:
        if not isinstance(payload.outcome, Aborted) or payload.step_name != "slow":
            return None
        if veto == "control":
            raise UsageLimitExceededError("said the hook")
        return Aborted(reason="said the hook")

    branches = {"slow": Step("slow", slow)} | ({"bad": Step("bad", agent)} if how == "sibling" else {})
    step = Step.parallel("p", branches, timeout_s=5, max_retries=3, backoff=AT_ONCE, fallback=Step("f", standby))
    handle = Flujo(step, hooks=hook).run_async(1)
    if veto == "control":
        with pytest.raises(UsageLimitExceededError, match="said the hook"):
            await handle
    else:
        result = await handle
        assert (result.status, result.feedback) == ("aborted", "said the hook")
    assert (len(agent.calls), standby.calls) == (1 if how == "sibling" else 0, [])


# --- failing hooks ------------------------------------------------------------------------------------------


@pytest.mark.trio
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("style", ["sync", "async"])
async def test_a_failing_hook_harms_nothing_and_is_reported(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture, moment: str, style: str
) -> None:
    """The run and the other hooks go on as if it were not there; the log names it."""

    def bad(payload: Any) -> None:
        if payload.kind == moment:
            raise RuntimeError("clumsy hook")

    async def bad_async(payload: Any) -> None:
        bad(payload)

    diary = Diary()
    pipeline = Step("a", failing(), fallback=Step("f", failing()))
    human = Step.human_in_the_loop("h", "?")
    for run in (pipeline, human):
        with caplog.at_level(logging.WARNING, logger="flujo_actors"):
            result = await Flujo(run, hooks=[bad if style == "sync" else bad_async, diary]).run_async(1)
        assert result.status == ("paused" if run is human else "failed")
    assert set(MOMENTS) == {each.kind for each in diary.payloads}
    assert any("bad" in record.getMessage() and moment in record.getMessage() for record in caplog.records)


@pytest.mark.trio
async def test_what_a_hook_returns_is_ignored_unless_it_is_an_abort(autojump_clock: Any) -> None:
    """A number or a `Failure` changes nothing."""
    for answer in (1, "stop", True, Failure(feedback="no"), Paused(message="no")):
        assert (await Flujo(Step("a", same), hooks=lambda payload, answer=answer: answer).run_async(1)).success


# --- aborting hooks -----------------------------------------------------------------------------------------


def aborting(moment: str, how: str, step_name: str = "leaf") -> Any:
    """A hook that aborts the run at a moment, about a step."""

    def hook(payload: Any) -> Any:
        if payload.kind != moment or getattr(payload, "step_name", step_name) != step_name:
            return None
        if how == "raise":
            raise AbortRun("the hook said so")
        return Aborted(reason="the hook said so")

    async def hook_async(payload: Any) -> Any:
        await trio.sleep(0)
        return hook(payload)

    return hook_async if how == "async" else hook


def leaf_for(moment: str, agent: Any = same) -> Any:
    """A step that has that moment."""
    if moment == "on_step_failure":
        return Step("leaf", failing(), max_retries=1, backoff=AT_ONCE)
    return Step.human_in_the_loop("leaf", "?") if moment == "on_pause" else Step("leaf", agent)


@pytest.mark.trio
@pytest.mark.parametrize("moment", MOMENTS[:-1])
@pytest.mark.parametrize("how", ["return", "raise", "async"])
async def test_a_hook_aborts_the_run_at_any_moment(autojump_clock: Any, moment: str, how: str) -> None:
    """Nothing later runs, the reason is the feedback, the other hooks still hear everything."""
    diary, later, agent = Diary(), Scripted("never"), Scripted("leaf ran")
    pipeline = leaf_for(moment, agent) >> Step("later", later)
    result = await Flujo(pipeline, hooks=[aborting(moment, how), diary]).run_async(1)
    assert (result.status, result.feedback, result.success) == ("aborted", "the hook said so", False)
    assert later.calls == []
    assert moment in {each.kind for each in diary.payloads}
    assert diary.entries[-1] == "post_run"
    assert diary.payloads[-1].result == result
    assert not agent.calls or moment == "post_step"


@pytest.mark.trio
@pytest.mark.parametrize("how", ["return", "raise", "async"])
async def test_aborting_after_the_run_changes_nothing(autojump_clock: Any, how: str) -> None:
    """What `post_run` was told is what the caller gets."""
    result = await Flujo(Step("leaf", same), hooks=aborting("post_run", how)).run_async(1)
    assert (result.status, result.output) == ("completed", 1)


@pytest.mark.trio
@pytest.mark.parametrize("place", PLACES, ids="-".join)
@pytest.mark.parametrize("moment", ["pre_step", "post_step", "on_step_failure", "on_pause"])
async def test_a_hook_aborts_from_any_depth(autojump_clock: Any, place: tuple[str, str], moment: str) -> None:
    """Retries and fallbacks around the step are not tried, whatever is done is counted."""
    standby, later = Scripted("never"), Scripted("never")
    leaf = Step("paid", Scripted(spent(1, 7))) >> leaf_for(moment)
    around = Step.parallel("p", {"x": nested(place, leaf)}, max_retries=2, fallback=Step("f", standby))
    result = await Flujo(around >> Step("later", later), hooks=aborting(moment, "return")).run_async(1)
    assert (result.status, result.feedback) == ("aborted", "the hook said so")
    assert (standby.calls, later.calls) == ([], [])
    assert result.total_tokens == sum(each.token_counts for each in result.step_history) == 7


@pytest.mark.trio
async def test_an_abort_of_a_pause_leaves_nothing_to_resume(autojump_clock: Any) -> None:
    """The run is over, so its token is worth nothing."""
    result = await Flujo(leaf_for("on_pause"), hooks=aborting("on_pause", "return")).run_async(1)
    assert (result.status, result.state_token) == ("aborted", None)


@pytest.mark.trio
async def test_after_a_cancellation_post_run_still_tells_the_result(autojump_clock: Any) -> None:
    """Open steps are told to have been aborted, then the run: aborted, with what it had used."""
    diary = Diary()

    async def slow(data: Any) -> None:
        await trio.sleep(60)

    pipeline = Step("paid", Scripted(spent(1, 7))) >> Step.parallel("p", {"x": Step("slow", slow)})
    with trio.move_on_after(5):
        await Flujo(pipeline, hooks=diary).run_async(1)
    assert diary.entries[-3:] == ["post_step slow", "post_step p", "post_run"]
    result = diary.payloads[-1].result
    assert isinstance(result, PipelineResult)
    assert (result.status, result.total_tokens) == ("aborted", 7)


def test_a_hook_that_cannot_be_called_is_an_error_when_it_is_declared() -> None:
    """Not when it would be called."""
    with pytest.raises(DeclarationError, match="cannot be called"):
        Flujo(Step("a", same), hooks=["no hook"])
