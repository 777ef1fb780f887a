"""Values that misbehave when they are looked at: the step that made them fails, and its run ends."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from flujo_actors import (
    Aborted,
    Backoff,
    Chunk,
    Failure,
    Flujo,
    NotSerializable,
    Paused,
    Pipeline,
    PipelineResult,
    PreStep,
    RunClient,
    Step,
    StepResult,
    Success,
    Usage,
    UsageLimitExceededError,
    from_json,
    to_json,
)


def refuse(*_: object, **__: object) -> NoReturn:
    raise RuntimeError("instance is not bound to a session")


class Gone:
    """A field that is there until somebody reads it, as a row of an ORM after its session."""

    def __get__(self, row: object, owner: object = None) -> Any:
        if row is None:
            raise AttributeError
        refuse()

    def __set__(self, row: object, value: object) -> None:
        pass


@dataclasses.dataclass
class Row:
    """One of whose fields cannot be read."""

    name: str = Gone()  # type: ignore[assignment]


class Everything:
    """Whose every unknown attribute raises."""

    __getattr__ = refuse


class Unbound:
    """Whose usage cannot be read."""

    token_counts = property(refuse)


class Hidden(Mapping[str, int]):
    """A mapping that cannot be walked through."""

    __getitem__ = __iter__ = __len__ = __contains__ = refuse


class BrokenList(list[int]):
    """A list that cannot be walked through."""

    __iter__ = refuse


class BrokenText(str):
    """A text that cannot be written out."""

    __str__ = __repr__ = refuse


class Nameless:
    """Without a text, a hash, a truth or an equal."""

    __str__ = __repr__ = __hash__ = __bool__ = __eq__ = __iter__ = refuse  # type: ignore[assignment]


class Mute(Exception):
    """An exception that cannot say anything."""

    __str__ = refuse
    __notes__ = property(refuse)  # type: ignore[assignment]


MISBEHAVING: list[Callable[[], Any]] = [
    lambda: Row("Ada"),
    Everything,
    Unbound,
    Hidden,
    BrokenList,
    BrokenText,
    Nameless,
]


@pytest.fixture(params=["in memory", "stored"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., PipelineResult]:
    """Runs a step or a pipeline to its result; a stored run must have ended as the result says."""

    def run_it(pipeline: Step | Pipeline, data: Any = 1, **config: Any) -> PipelineResult:
        if request.param == "in memory":
            return Flujo(pipeline, **config).run(data)
        url = f"sqlite:///{tmp_path}/runs.db"
        result = Flujo(pipeline, store=url, **config).run(data)
        assert RunClient(url).get(result.run_id).status == result.status
        return result

    return run_it


@pytest.mark.parametrize("make", MISBEHAVING)
def test_an_output_that_cannot_be_stored_fails_its_step(make: Callable[[], Any], tmp_path: Path) -> None:
    """Whatever its attributes, iteration or text raise; the run ends, and says so."""
    url = f"sqlite:///{tmp_path}/runs.db"

    async def work(data: int) -> Any:
        return make()

    for step in (Step("work", work), Step("work", work, max_retries=1), Step("work", work, timeout_s=60)):
        result = Flujo(step, store=url).run(1)
        assert result.status == RunClient(url).get(result.run_id).status == "failed"
        assert isinstance(result.feedback, str)


@pytest.mark.parametrize("make", MISBEHAVING)
def test_an_output_that_misbehaves_ends_its_run(make: Callable[[], Any], run: Callable[..., PipelineResult]) -> None:
    """In memory it may be handed on as it is; no exception of its own leaves the run."""

    async def work(data: int) -> Any:
        return make()

    assert run(Step("work", work)).status in ("completed", "failed")
    assert run(Step("work", work) >> Step.map_over("map", Step("each", lambda item: item))).status == "failed"
    assert run(Step("work", work, updates_context=True)).status == "failed"


@pytest.mark.parametrize("make", MISBEHAVING)
def test_a_context_that_misbehaves_fails_a_step(make: Callable[[], Any], run: Callable[..., PipelineResult]) -> None:
    """When it is stored, copied or merged, whichever comes first."""

    async def keep(data: int, *, context: Any) -> int:
        context.kept = make()
        return data

    async def look(data: int, *, context: Any) -> int:
        return data

    branches = Step.parallel("stage", {"one": Step("keep", keep), "other": Step("look", look)})
    for pipeline in (Step("keep", keep) >> Step("look", look), branches >> Step("look", look)):
        assert run(pipeline).status in ("completed", "failed")


@pytest.mark.parametrize("make", MISBEHAVING)
def test_chunks_that_misbehave_are_pieces_like_others(
    make: Callable[[], Any], run: Callable[..., PipelineResult]
) -> None:
    """They are gathered as they are; what cannot be written is told as such."""

    async def stream(data: int) -> AsyncIterator[Any]:
        yield make()
        yield make()

    assert run(Step("stream", stream)).status in ("completed", "failed")
    with pytest.raises(NotSerializable):
        to_json(Chunk(data=make()))


@pytest.mark.parametrize("metadata", [5, Hidden(), {"row": Row("Ada")}, {"nameless": Nameless()}])
def test_metadata_that_misbehave_end_their_run(metadata: Any, run: Callable[..., PipelineResult]) -> None:
    """A step that makes its own result may put anything there."""

    async def work(data: int) -> StepResult:
        return StepResult(name="work", output=data, metadata=metadata)

    assert run(Step("work", work)).status in ("completed", "failed")


@pytest.mark.parametrize("make", [Mute, lambda: ExceptionGroup("both", [Mute(), ValueError("no")])])
def test_an_exception_that_cannot_say_anything_is_a_failure(
    make: Callable[[], Exception], run: Callable[..., PipelineResult]
) -> None:
    """It is told by its type, and what is stored of it can be read."""

    async def work(data: int) -> int:
        raise make()

    result = run(Step("work", work))
    assert result.status == "failed"
    assert type(make()).__name__ in result.feedback
    told: Any = from_json(to_json(Failure(error=make())), Failure)
    assert told.error.type_name == type(make()).__name__


ODD_OUTCOMES: list[Callable[[], Any]] = [
    lambda: Paused(message=5),  # type: ignore[arg-type]
    lambda: Paused(message=Nameless()),  # type: ignore[arg-type]
    lambda: Aborted(reason=Nameless()),  # type: ignore[arg-type]
    lambda: Failure(feedback=Nameless()),  # type: ignore[arg-type]
    lambda: Failure(error="text"),  # type: ignore[arg-type]
    lambda: Failure(step_result=5),  # type: ignore[arg-type]
    lambda: Success(step_result=5),  # type: ignore[arg-type]
    lambda: StepResult(name="work", usage=5),  # type: ignore[arg-type]
    lambda: StepResult(name="work", token_counts="many"),  # type: ignore[arg-type]
    lambda: StepResult(name="work", cost_usd=float("nan")),
    lambda: StepResult(name="work", cost_usd=-1.0),
    lambda: StepResult(name="work", token_counts=-10),
    lambda: StepResult(name="work", usage=Usage(cost_usd=float("inf"))),
    lambda: StepResult(name="work", usage=Usage(input_tokens=-5)),
    lambda: StepResult(name="work", success=Nameless()),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", ODD_OUTCOMES)
def test_an_outcome_that_no_outcome_can_be_fails_its_step(
    make: Callable[[], Any], run: Callable[..., PipelineResult]
) -> None:
    """A step may end as it likes, but what it says is checked, also inside others and at the end of a stream."""

    async def work(data: int) -> Any:
        return make()

    async def stream(data: int) -> AsyncIterator[Any]:
        yield make()

    inside = Step.loop_until("loop", Step("work", work), until=lambda data, context: True)
    for step in (Step("work", work), Step("work", work, timeout_s=60), Step("work", stream), inside):
        result = run(step)
        assert result.status == "failed"
        assert "work" in result.feedback


@pytest.mark.parametrize("verdict", [Nameless, lambda: [Nameless()], lambda: {"row": Row("Ada")}, Everything])
def test_a_verdict_that_misbehaves_fails_its_step(
    verdict: Callable[[], Any], run: Callable[..., PipelineResult]
) -> None:
    """What a validator returns is looked at with the same care."""
    result = run(Step("work", lambda data: data, validators=[lambda output: verdict()]))
    assert result.status == "failed"
    assert "Validation failed" in result.feedback


def test_a_hook_that_aborts_without_a_reason_that_can_be_told_has_failed(run: Callable[..., PipelineResult]) -> None:
    """The run goes on as if the hook had raised."""

    def abort(told: PreStep) -> Aborted:
        return Aborted(reason=Nameless())  # type: ignore[arg-type]

    assert run(Step("work", lambda data: data), hooks=abort).status == "completed"


def test_what_decides_between_steps_may_misbehave(run: Callable[..., PipelineResult]) -> None:
    """A condition without a truth, a selection without a hash, a question without a text: the step fails."""
    body = Step("body", lambda data: data)
    deciding = [
        Step.loop_until("loop", body, until=lambda data, context: Nameless()),
        Step.branch_on("branch", lambda data, context: Nameless(), {"a": body}),
        Step.branch_on("branch", lambda data, context: Nameless(), {"a": body}, default=body),
        Step.map_over("map", body, items=lambda data, context: BrokenList()),
        Step.map_over("map", body, items=lambda data, context: Everything()),
        Step.human_in_the_loop("ask", lambda data, context: Nameless()),
    ]
    for step in deciding:
        result = run(step)
        assert result.status == "failed", step
        assert step.name in result.feedback


@pytest.mark.parametrize("make", MISBEHAVING)
def test_an_input_that_cannot_be_stored_starts_no_run(make: Callable[[], Any], tmp_path: Path) -> None:
    """The caller is told what is wrong with it."""
    url = f"sqlite:///{tmp_path}/runs.db"
    with pytest.raises(NotSerializable, match="the run was not started: its input cannot be stored"):
        Flujo(Step("same", lambda data: data), store=url).run(make(), run_id="run")
    assert RunClient(url).list() == []


def test_a_question_about_a_value_that_misbehaves_can_be_answered(run: Callable[..., PipelineResult]) -> None:
    """A token is bound to its data as far as the data can be read."""

    asking = Step("rows", lambda data: data) >> Step.human_in_the_loop(
        "ask", "?", input=lambda data, context: Row("Ada")
    )
    assert run(asking).status == "paused"


# --- exceptions ----------------------------------------------------------------------------------------------


class Hollow(Exception):
    """Of which nothing that exceptions have can be read."""

    args = __notes__ = __cause__ = __context__ = __traceback__ = __dict__ = property(refuse)  # type: ignore[assignment]


def in_groups(depth: int) -> BaseException:
    """An error inside so many groups."""
    error: Exception = ValueError("the leaf")
    for _ in range(depth):
        error = ExceptionGroup("a group", [error])
    return error


def many_at_once() -> BaseException:
    """More members than anybody wants to read."""
    return ExceptionGroup("many", [ValueError("x" * 1_000) for _ in range(2_000)])


ODD_ERRORS: dict[str, Callable[[], BaseException]] = {
    "hollow": Hollow,
    "deep": lambda: in_groups(3_000),
    "wide": many_at_once,
}


@pytest.mark.parametrize("kind", ODD_ERRORS)
def test_an_exception_that_is_hard_to_tell_fails_its_step(kind: str, run: Callable[..., PipelineResult]) -> None:
    """However it is made: the result names its type, keeps it, and stays of a size that can be logged and stored."""

    async def work(data: int) -> Any:
        raise ODD_ERRORS[kind]()

    result = run(Step("work", work))
    assert result.status == "failed"
    assert type(ODD_ERRORS[kind]()).__name__ in (result.feedback or "")
    assert type(result.error) is type(ODD_ERRORS[kind]())
    assert len(to_json(result)) < 1_000_000
    fallback = run(Step("work", work, max_retries=1, backoff=Backoff.none(), fallback=Step("instead", lambda data: 7)))
    assert fallback.output == 7


def test_the_leaf_of_a_deep_group_is_told(run: Callable[..., PipelineResult]) -> None:
    """What went wrong stands in the feedback, not how it was wrapped."""

    async def work(data: int) -> Any:
        raise in_groups(500)

    assert "ValueError: the leaf" in (run(Step("work", work)).feedback or "")


def test_a_control_error_deep_in_groups_stops_the_run() -> None:
    """From any depth, this one too."""

    async def work(data: int) -> Any:
        error: Exception = UsageLimitExceededError("enough")
        for _ in range(2_000):
            error = ExceptionGroup("a group", [error])
        raise error

    with pytest.raises(UsageLimitExceededError, match="enough"):
        Flujo(Step("work", work)).run(1)
