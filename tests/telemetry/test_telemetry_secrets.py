"""No secret leaves a program through outcomes as JSON, its log, reasons that code gives, or a store."""

from __future__ import annotations

import base64
import html
import json
import logging
import urllib.parse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry
from pydantic_ai.exceptions import ToolFailed
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from flujo_actors import (
    Aborted,
    AbortRun,
    ContextError,
    ErrorInfo,
    Failure,
    Flujo,
    Paused,
    PipelineResult,
    PostStep,
    PreRun,
    PreStep,
    Redirect,
    RunClient,
    Step,
    StepResult,
    Success,
    to_json,
)
from flujo_actors.telemetry import REPLACEMENT, Redactor
from flujo_actors.testing import MemorySink

CANARY = "sk-proj-Canary0123456789abcdefABCDEF0123456789"
SAID = f"401 for {CANARY}"
AWKWARD = "gehëim/9Z+x\"y'z\\w&<b> c"


def raising(error: BaseException) -> Callable[..., Any]:
    async def step(data: Any) -> Any:
        raise error

    return step


def answering(value: Any) -> Callable[..., Any]:
    async def step(data: Any) -> Any:
        return value

    return step


def _told_in_full() -> BaseException:
    """An error that says it everywhere an error can: in its cause, in a group, in notes."""
    error = ExceptionGroup(SAID, [ValueError(SAID), KeyError(SAID)])
    error.__cause__ = RuntimeError(SAID)
    error.__cause__.__context__ = OSError(SAID)
    error.add_note(SAID)
    return error


# --- outcomes as JSON ---------------------------------------------------------------------------------------

MESSAGES: list[Any] = [
    Failure(error=_told_in_full(), feedback=SAID, step_result=StepResult(name="s", success=False, feedback=SAID)),
    Failure(error=ErrorInfo(type_name="E", message=SAID, causes=(ErrorInfo(type_name="E", message=SAID),))),
    Aborted(reason=SAID),
    Paused(message=SAID),
    ErrorInfo(type_name="E", message=SAID, notes=(SAID,)),
    StepResult(name="s", step_history=(StepResult(name="t", success=False, feedback=SAID),)),
    PipelineResult(run_id="r", status="failed", feedback=SAID, step_history=(StepResult(name="t", feedback=SAID),)),
    Success(step_result=StepResult(name="s", output={"errors": [ValueError(SAID)]})),
    ValueError(SAID),
    {"errors": [_told_in_full()]},
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda each: type(each).__name__)
def test_the_json_of_a_message_tells_no_secret(message: Any) -> None:
    """Not in an error, its notes and causes, nor in feedback, reasons, questions, at any depth."""
    written = to_json(message)
    assert CANARY not in written
    assert REPLACEMENT in written


@pytest.mark.trio
async def test_the_json_of_a_real_failure_tells_no_secret() -> None:
    """It is what a server streams to a browser."""
    flujo = Flujo(Step("call", raising(_told_in_full())))
    [outcome] = [outcome async for outcome in flujo.run_async(1)]
    assert CANARY not in to_json(outcome)
    assert CANARY not in to_json(await flujo.run_async(1))


@pytest.mark.trio
async def test_what_a_failure_looks_like_in_a_log_tells_no_secret() -> None:
    """Outcomes and results are logged and printed as they are; the original exception is still in them."""
    flujo = Flujo(Step("call", raising(_told_in_full())))
    [outcome] = [outcome async for outcome in flujo.run_async(1)]
    result = await flujo.run_async(1)
    assert CANARY not in f"{outcome!r} {result!r}"
    assert CANARY in str(result.error)


def test_the_json_of_an_output_is_the_output() -> None:
    """What a step made is its caller's data, and comes back as it was."""
    result = Flujo(Step("keys", answering({"api_key": CANARY}))).run(1)
    assert json.loads(to_json(result))["output"] == {"api_key": CANARY}


def test_the_json_of_a_failure_hides_what_deps_hold() -> None:
    """Their secrets have no shape: they are known by the name they are held under, also when the Flujo is gone."""
    key = "deps-held-2f9a8b7c"
    result = Flujo(Step("call", raising(RuntimeError(f"{key} refused"))), resources={"api_key": key}).run(1)
    failure = Failure(error=RuntimeError(f"{key} refused"), feedback=result.feedback)
    assert key not in to_json(failure)


# --- the log ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError(SAID), _told_in_full()], ids=["plain", "in full"])
def test_a_failing_hook_is_logged_without_secrets(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """With its traceback, its causes and its notes, all of them redacted."""

    def hook(payload: PreRun) -> None:
        raise error

    Flujo(Step("same", answering(1)), hooks=hook).run(1)
    assert "hook" in caplog.text
    assert "in hook" in caplog.text
    assert "Traceback" in caplog.text
    assert CANARY not in caplog.text


def test_a_traceback_without_secrets_is_logged_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """Handlers that look at the exception itself find it."""
    error = ValueError("no")

    def hook(payload: PreRun) -> None:
        raise error

    Flujo(Step("same", answering(1)), hooks=hook).run(1)
    [record] = [record for record in caplog.records if record.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[1] is error


def test_whatever_the_package_logs_is_redacted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also what only the environment knows to be secret, in arguments and texts."""
    monkeypatch.setenv("LATE_API_KEY", "late-secret-value-123")
    with caplog.at_level(logging.DEBUG, "flujo_actors"):
        logging.getLogger("flujo_actors").debug("cannot recover: %s", ValueError("late-secret-value-123 refused"))
    assert caplog.messages == [f"cannot recover: {REPLACEMENT} refused"]


# --- reasons ------------------------------------------------------------------------------------------------


def _hook_that(answer: Any) -> Callable[[Any], Any]:
    def hook(payload: PreStep) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return hook


def _after(answer: Any) -> Callable[[Any], Any]:
    def hook(payload: PostStep) -> Any:
        return answer

    return hook


REASONS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "aborted": lambda: (Step("s", answering(Aborted(reason=SAID))), ()),
    "failure": lambda: (Step("s", answering(Failure(feedback=SAID))), ()),
    "failure with error": lambda: (Step("s", answering(Failure(error=ValueError(SAID)))), ()),
    "result": lambda: (Step("s", answering(StepResult(name="s", success=False, feedback=SAID))), ()),
    "paused": lambda: (Step("s", answering(Paused(message=SAID))), ()),
    "question": lambda: (Step.human_in_the_loop("s", lambda data, context: SAID), ()),
    "validator": lambda: (Step("s", answering(1), validators=[lambda output: SAID]), ()),
    "redirect": lambda: (Step("s", answering(1), validators=[lambda output: Redirect(answering(1), SAID)]), ()),
    "retried": lambda: (Step("s", answering(Failure(feedback=SAID)), max_retries=1), ()),
    "in thread": lambda: (Step("s", lambda data: Aborted(reason=SAID)), ()),
    "fallback": lambda: (Step("s", raising(ValueError(SAID)), fallback=Step("f", answering(1))), ()),
    "nested": lambda: (Step.parallel("p", {"a": Step("s", answering(Failure(feedback=SAID)))}), ()),
    "processor": lambda: (Step("s", answering(1), processors={"after": [raising(ContextError(SAID))]}), ()),
    "hook": lambda: (Step("s", answering(1)), _hook_that(Aborted(reason=SAID))),
    "hook after": lambda: (Step("s", answering(1)), _after(Aborted(reason=SAID))),
    "hook raises": lambda: (Step("s", answering(1)), _hook_that(AbortRun(SAID))),
}


@pytest.mark.parametrize("how", REASONS)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_reason_that_code_gives_is_redacted_everywhere(how: str, tmp_path: Path) -> None:
    """In the result, in what telemetry hears, and in the store."""
    step, hooks = REASONS[how]()
    sink = MemorySink()
    settings = {"telemetry": {"sinks": [sink]}}
    result = Flujo(step, hooks=hooks, settings=settings, store=f"sqlite:///{tmp_path}/runs.db").run(1)
    assert CANARY not in str(result.feedback)
    assert CANARY not in str([each for _, each in result.walk()])
    assert CANARY not in str(sink.events)
    assert not [file for file in tmp_path.iterdir() if CANARY.encode() in file.read_bytes()]


# --- late secrets -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sinks", [[], [MemorySink()]], ids=["unheard", "heard"])
def test_a_secret_of_the_environment_is_known_whenever_it_comes(
    sinks: list[MemorySink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Set after the Flujo was made, as `load_dotenv` does, or by a step of the run itself."""

    async def call(data: int) -> int:
        if data:
            monkeypatch.setenv("SERVICE_API_KEY", "second-secret-456")
        raise RuntimeError("first-secret-123 and second-secret-456")

    flujo = Flujo(Step("call", call), settings={"telemetry": {"sinks": sinks}} if sinks else None)
    monkeypatch.setenv("SERVICE_API_KEY", "first-secret-123")
    assert "RuntimeError: [redacted] and second-secret-456" in str(flujo.run(0).feedback)
    assert "RuntimeError: [redacted] and [redacted]" in str(flujo.run(1).feedback)
    monkeypatch.delenv("SERVICE_API_KEY")
    assert "RuntimeError: [redacted] and [redacted]" in str(flujo.run(0).feedback)
    assert "first-secret-123" not in str([sink.events for sink in sinks])


def test_a_secret_that_resources_get_later_is_known() -> None:
    """Tokens are fetched and renewed while a program runs."""
    resources: dict[str, str] = {}

    async def call(data: int) -> int:
        resources["access_token"] = "renewed-789-token"
        raise RuntimeError("renewed-789-token was refused")

    assert "[redacted] was refused" in str(Flujo(Step("call", call), resources=resources).run(1).feedback)


# --- secrets of resources -----------------------------------------------------------------------------------

HELD = "held-by-resources-42"


def _files_with(secret: str, folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if secret.encode() in file.read_bytes()]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_reason_of_a_cancellation_hides_secrets_of_resources(tmp_path: Path) -> None:
    """A client of the same process knows what its pipelines know, also for a run that no process executes."""
    address = f"sqlite:///{tmp_path}/runs.db"
    flujo = Flujo(Step.human_in_the_loop("ask", message="?"), resources={"api_key": HELD}, store=address)
    paused = flujo.run(1)
    client = RunClient(address)
    client.cancel(paused.run_id, f"{HELD} was leaked")
    assert "[redacted] was leaked" in str(client.state(paused.run_id))
    assert not _files_with(HELD, tmp_path)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_the_addressee_of_an_approval_hides_secrets_of_resources(tmp_path: Path) -> None:
    """An address may carry a password."""
    address = f"sqlite:///{tmp_path}/runs.db"
    step = Step.approval("ok", "Pay?", to=f"https://bot:{HELD}@chat/ops")
    Flujo(step, resources={"api_key": HELD}, store=address).run(1)
    assert not _files_with(HELD, tmp_path)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("signal", [ModelRetry, ToolFailed])
def test_what_a_tool_tells_the_model_hides_secrets_of_resources(signal: type[Exception], tmp_path: Path) -> None:
    """Neither the model nor the store sees a secret that the text of an error quotes."""
    seen: list[str] = []

    def answer(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        seen.append(str(messages))
        return ModelResponse(parts=[ToolCallPart("look", {})] if len(seen) == 1 else [TextPart("done")])

    agent = Agent(FunctionModel(answer))

    @agent.tool_plain
    def look() -> str:
        raise signal(f"no access with {HELD}")

    address = f"sqlite:///{tmp_path}/runs.db"
    result = Flujo(Step.granular("g", agent), resources={"api_key": HELD}, store=address).run("go")
    assert result.output == "done"
    assert "no access with [redacted]" in seen[1]
    assert not _files_with(HELD, tmp_path)


@pytest.mark.trio
async def test_a_huge_error_is_kept_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    """Thirty megabytes are cut before they are searched for secrets, and the log has less of them."""
    result = await Flujo(Step("s", raising(ValueError("word " * 6_000_000)))).run_async(1)
    assert result.feedback is not None
    assert len(result.feedback) < 1_300_000
    assert "characters left out" in result.feedback
    assert max(len(record.getMessage()) for record in caplog.records) < 25_000


# --- spellings ----------------------------------------------------------------------------------------------

SPELLINGS: dict[str, Callable[[str], str]] = {
    "raw": str,
    "quote": urllib.parse.quote,
    "quote all": lambda text: urllib.parse.quote(text, safe=""),
    "quote plus": urllib.parse.quote_plus,
    "lower case": lambda text: urllib.parse.quote(text).replace("%C3%AB", "%c3%ab").replace("%5C", "%5c").lower(),
    "httpx": lambda text: urllib.parse.quote(text, safe="!$&'()*+,;=:"),
    "json": json.dumps,
    "json with letters": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps({"v": text})),
    "repr": repr,
    "repr in repr": lambda text: repr({"v": f'"{text}'}),
    "repr of bytes": lambda text: repr(text.encode()),
    "html": html.escape,
    "dsn": lambda text: text.replace("\\", "\\\\").replace("'", "\\'"),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "basic auth": lambda text: base64.b64encode(f"user:{text}".encode()).decode(),
    "basic auth of another": lambda text: base64.b64encode(f"users:{text}".encode()).decode(),
    "base64 of a document": lambda text: base64.urlsafe_b64encode(f'{{"v": "{text}", "n": 1}}'.encode()).decode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("secret", ["plain-secret-0815", AWKWARD], ids=["plain", "awkward"])
def test_a_known_secret_is_hidden_in_every_spelling(spelling: str, secret: str) -> None:
    """As drivers, clients and loggers write it."""
    written = SPELLINGS[spelling](secret.lower() if spelling == "lower case" else secret)
    known = secret.lower() if spelling == "lower case" else secret
    said = Redactor.from_environment({"A_PASSWORD": known}).text(f"login failed with {written}.")
    assert REPLACEMENT in said
    assert not any(part in said for part in (secret, written, written[4:-8]))


ADDRESSES = {
    "url": ("postgresql://app:dbpass-w0rd%21x@db/runs", "dbpass-w0rd!x"),
    "query": ("postgresql://db/runs?user=app&password=dbpass-w0rd%21x", "dbpass-w0rd!x"),
    "words": ("host=db password=dbpass-w0rd!x dbname=runs", "dbpass-w0rd!x"),
}


@pytest.mark.parametrize("kind", ADDRESSES)
def test_the_password_of_an_address_is_known_as_drivers_use_it(kind: str) -> None:
    """Decoded, where the address spells it percent-encoded."""
    address, password = ADDRESSES[kind]
    redactor = Redactor.from_environment({"DATABASE_URL": address})
    assert password not in redactor.text(f"login failed for app with {password}.")
    assert password not in Redactor().with_deps({"url": address}).text(f"login failed for app with {password}.")


@pytest.mark.parametrize("name", ["PGPASSWORD", "DB_PASS", "SMTP_PASSWD", "STRIPE_KEY", "MYSECRET", "OPENAI_APIKEY"])
def test_a_variable_that_is_usually_secret_is_known_by_its_name(name: str) -> None:
    """Services name them in more ways than fields are named."""
    assert Redactor.from_environment({name: "value-of-it-1"}).text("value-of-it-1") == REPLACEMENT
