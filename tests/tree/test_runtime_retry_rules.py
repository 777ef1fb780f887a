"""`retry_on`: failures that are retried, and waits that a provider asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from pydantic_ai.exceptions import ModelConnectionError, ModelHTTPError
from scripted import AT_ONCE, Scripted

from flujo_actors import (
    Backoff,
    DeclarationError,
    FingerprintMismatch,
    Flujo,
    MemoryStore,
    RefusedOutput,
    Step,
    dump_blueprint,
    load_blueprint,
    provider_errors,
)
from flujo_actors._durable.fingerprint import Fingerprint


def _chained() -> Exception:
    error = RuntimeError("outer")
    error.__cause__ = ValueError("inner")
    return error


def _status(code: int, retry_after: float | None = None) -> ModelHTTPError:
    return ModelHTTPError(code, "m", retry_after=retry_after)


@pytest.mark.trio
@pytest.mark.parametrize(
    ("rules", "error", "attempts"),
    [
        (ValueError, KeyError("no"), 1),
        (ValueError, ValueError("yes"), 2),
        (ValueError, _chained(), 2),
        (503, _status(400), 1),
        (503, _status(503), 2),
        ([503, KeyError], KeyError("yes"), 2),
        (lambda error: "again" in str(error), RuntimeError("again, please"), 2),
        (lambda error: "again" in str(error), RuntimeError("no"), 1),
        (provider_errors, _status(529), 2),
        (provider_errors, ModelConnectionError("m", "reset"), 2),
        (provider_errors, _status(401), 1),
        ((), ValueError("nothing is retried"), 1),
        (None, ValueError("everything is retried"), 2),
    ],
)
async def test_only_a_failure_that_matches_is_retried(
    autojump_clock: Any, rules: Any, error: Any, attempts: int
) -> None:
    """A class, an HTTP status or a function decides; the fallback acts at once otherwise."""
    step = Step("s", Scripted(error, "second"), max_retries=1, backoff=AT_ONCE, retry_on=rules, fallback=_standby)
    result = await Flujo(step).run_async(1)
    calls = result.step_history[0].attempts - len(result.step_history[0].step_history)
    assert (calls, result.output) == (attempts, "second" if attempts == 2 else "standby")


def _standby(data: object) -> str:
    return "standby"


@pytest.mark.trio
@pytest.mark.parametrize(("rules", "attempts"), [(RefusedOutput, 2), (ConnectionError, 1)])
async def test_a_refused_answer_is_matched_by_its_own_class(autojump_clock: Any, rules: Any, attempts: int) -> None:
    """A validator raises nothing, so `RefusedOutput` names its refusal."""
    step = Step("s", Scripted(1, 2), max_retries=1, backoff=AT_ONCE, retry_on=rules, validators=lambda n: n == 2)
    result = await Flujo(step).run_async(0)
    assert result.step_history[0].attempts == attempts


@pytest.mark.trio
async def test_one_member_of_a_group_that_does_not_match_is_final(autojump_clock: Any) -> None:
    """Another attempt repeats every member."""
    agent = Scripted(ExceptionGroup("both", [_status(503), ValueError("always")]), "second")
    result = await Flujo(Step("s", agent, max_retries=1, backoff=AT_ONCE, retry_on=503)).run_async(0)
    assert (result.status, result.step_history[0].attempts) == ("failed", 1)


@pytest.mark.trio
async def test_an_exception_of_a_rule_is_the_failure(autojump_clock: Any) -> None:
    """The rule is user code: its error is reported with the step's name."""

    def broken(error: BaseException) -> bool:
        raise LookupError("rule")

    result = await Flujo(Step("s", Scripted(ValueError("x"), 2), max_retries=1, retry_on=broken)).run_async(0)
    assert result.status == "failed"
    assert "retry_on of step 's'" in (result.feedback or "")
    assert isinstance(result.error, LookupError)


@pytest.mark.trio
async def test_a_retry_waits_as_long_as_the_provider_asks(autojump_clock: Any) -> None:
    """`retry_after` lengthens the backoff, never shortens it."""
    began = trio.current_time()
    step = Step("s", Scripted(_status(429, 7.0), "second"), max_retries=1, backoff=Backoff(first=1, jitter=0))
    result = await Flujo(step).run_async(0)
    assert (result.output, trio.current_time() - began) == ("second", pytest.approx(7.0))


@pytest.mark.trio
async def test_a_longer_retry_after_than_accepted_is_final(autojump_clock: Any) -> None:
    """No run waits for an hour that it was not declared to wait for."""
    agent = Scripted(_status(429, 121.0), "second")
    result = await Flujo(Step("s", agent, max_retries=3, backoff=AT_ONCE)).run_async(0)
    assert (result.status, result.step_history[0].attempts) == ("failed", 1)
    longer = Backoff(first=0, ceiling=0, longest_retry_after_s=600)
    agent = Scripted(_status(429, 121.0), "second")
    result = await Flujo(Step("s", agent, max_retries=3, backoff=longer)).run_async(0)
    assert result.output == "second"


@pytest.mark.parametrize("rule", ["ValueError", 42, True, object(), int])
def test_a_rule_of_another_kind_is_refused(rule: object) -> None:
    """The message names the step and the accepted kinds."""
    with pytest.raises(DeclarationError, match=r"step 's': retry_on holds .* give exception classes, HTTP statuses"):
        Step("s", _standby, retry_on=rule)  # type: ignore[call-overload]


@pytest.mark.trio
async def test_a_changed_rule_is_a_changed_pipeline() -> None:
    """A strict resume refuses it."""
    store = MemoryStore()
    approval = Step.human_in_the_loop("ask", "?")
    paused = await Flujo(Step("s", _standby, retry_on=503) >> approval, store=store).run_async(0, run_id="r")
    changed = Flujo(Step("s", _standby, retry_on=[503, ValueError]) >> approval, store=store)
    with pytest.raises(FingerprintMismatch, match="retry_on"):
        await changed.resume_async(paused.state_token or "", "x")


def test_a_blueprint_names_rules_and_is_written_with_them(tmp_path: Path) -> None:
    """Builtins, pydantic-ai's classes and ours have names."""
    path = tmp_path / "b.yaml"
    path.write_text(
        "version: '1'\nname: p\nsteps:\n- name: s\n  uses: builtins.passthrough\n"
        "  config: {max_retries: 1, retry_on: [429, ConnectionError, ModelHTTPError, RefusedOutput]}\n"
    )
    pipeline = load_blueprint(path)
    (step,) = pipeline.steps
    assert getattr(step, "retry_on", None) == (429, ConnectionError, ModelHTTPError, RefusedOutput)
    again = tmp_path / "again.yaml"
    again.write_text(dump_blueprint(pipeline))
    assert Fingerprint.of(load_blueprint(again)).data() == Fingerprint.of(pipeline).data()


def test_a_blueprint_with_an_unknown_exception_is_refused(tmp_path: Path) -> None:
    """A file never causes an import: other names are unknown."""
    path = tmp_path / "b.yaml"
    path.write_text(
        "version: '1'\nname: p\nsteps:\n- name: s\n  uses: builtins.passthrough\n"
        "  config: {retry_on: [ConectionError]}\n"
    )
    with pytest.raises(DeclarationError, match="did you mean `ConnectionError`"):
        load_blueprint(path)


@pytest.mark.trio
@pytest.mark.parametrize("seconds", [float("inf"), 10**400], ids=["infinite", "no float"])
async def test_a_retry_after_that_no_clock_can_hold_is_final(seconds: float) -> None:
    """A provider's number does not raise in the run: it is longer than any accepted wait."""
    calls: list[int] = []

    async def busy(data: object) -> str:
        calls.append(1)
        error = ConnectionError("busy")
        error.retry_after = seconds  # type: ignore[attr-defined]
        raise error

    result = await Flujo(Step("s", busy, max_retries=2)).run_async("x")
    assert (result.status, len(calls)) == ("failed", 1)
