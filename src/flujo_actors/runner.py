"""`Flujo`: a pipeline with everything it needs to run."""

from __future__ import annotations

import functools
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import trio

from .actors.hooks import Hooks, plan_hooks
from .actors.root import drive
from .actors.run import Run
from .actors.shelf import Shelf, ShelvedRun
from .bridge.host import TRIO, Host, running_loop
from .context.isolation import check_context_model, isolated, make_context
from .core.events import HookFailed
from .core.outcomes import PipelineResult, RunId
from .core.payloads import HookPayload
from .core.settings import Settings
from .core.usage import UsageLimits
from .core.wire import message_of
from .dsl.pipeline import AnyStep, Pipeline, as_step
from .dsl.step import Step
from .dsl.tree import walk_steps
from .errors import LoopAlreadyRunning
from .handle import Outlet, RunHandle
from .settings import resolve_settings
from .telemetry.redaction import Redactor
from .telemetry.sinks import LogSink, Telemetry


class Flujo:
    """Runs one pipeline, any number of times and concurrently, from sync code, trio, or anyio on either backend."""

    def __init__(
        self,
        pipeline: AnyStep,
        context_model: type | None = None,
        initial_context_data: Mapping[str, Any] | None = None,
        resources: Any = None,
        usage_limits: UsageLimits | None = None,
        hooks: Iterable[Callable[[Any], Any]] | Callable[[Any], Any] = (),
        store: Any = None,
        settings: Any = None,
    ) -> None:
        self.pipeline = Pipeline.from_step(as_step(pipeline, where="what Flujo runs"))
        check_context_model(context_model)
        self._new_context = functools.partial(make_context, context_model, initial_context_data)
        self._first_context = self._new_context()
        self._resources = resources
        self._limits = usage_limits
        self._hooks = plan_hooks(hooks)
        self._settings = resolve_settings(settings)
        self._telemetry = _telemetry(self._settings, self.pipeline, resources)
        self._shelf = Shelf()

    # --- running ---

    def run(self, data: Any = None, *, run_id: str | None = None) -> PipelineResult:
        """Run the pipeline from synchronous code and return its result."""
        return _in_trio(self._start(data, run_id), instead="run_async")

    def run_async(self, data: Any = None, *, run_id: str | None = None) -> RunHandle:
        """A handle on a run: await it for the result, iterate it for the outcomes, or enter it."""
        return RunHandle(self._start(data, run_id))

    def run_outcomes_async(self, data: Any = None, *, run_id: str | None = None) -> RunHandle:
        """The same as `run_async`, under the name that says it is iterated."""
        return self.run_async(data, run_id=run_id)

    def _start(self, data: Any, run_id: str | None) -> Callable[[Host, Outlet | None], Any]:
        return functools.partial(self._run_new, data, RunId(run_id or uuid.uuid4().hex))

    async def _run_new(self, data: Any, run_id: RunId, host: Host, outlet: Outlet | None) -> PipelineResult:
        shelved = ShelvedRun(run_id=run_id, data=data, context=isolated(self._first_context))
        self._shelf.admit(shelved)
        return await self._drive(shelved, host, outlet, resumed=False)

    # --- resuming ---

    def resume(self, token: str, answer: Any = None) -> PipelineResult:
        """Continue a paused run from synchronous code; `token` is `Paused.state_token`."""
        return _in_trio(functools.partial(self._run_on, token, answer), instead="resume_async")

    def resume_async(self, token: str, answer: Any = None) -> RunHandle:
        """A handle on the rest of a paused run."""
        return RunHandle(functools.partial(self._run_on, token, answer))

    async def _run_on(self, token: str, answer: Any, host: Host, outlet: Outlet | None) -> PipelineResult:
        from .actors.answers import checked_answer  # loads pydantic, which only those who resume need

        pause = self._shelf.find_pause(token)
        checked = checked_answer(answer, pause.input_schema, step_name=pause.step_name)
        return await self._drive(self._shelf.answer(token, checked), host, outlet, resumed=True)

    # --- both ---

    async def _drive(self, shelved: ShelvedRun, host: Host, outlet: Outlet | None, *, resumed: bool) -> PipelineResult:
        run = Run(
            run_id=shelved.run_id,
            host=host,
            journal=shelved.journal,
            hooks=Hooks(self._hooks, host, self._report_hook),
            telemetry=self._telemetry,
            outlet=outlet,
            resources=self._resources,
            settings=self._settings,
        )
        result: PipelineResult | None = None
        try:
            result = await drive(
                run, self.pipeline, shelved.data, shelved.context, limits=self._limits, resumed=resumed
            )
        finally:
            self._shelf.put_back(shelved, result)
        return result

    def _report_hook(self, name: str, payload: HookPayload, error: BaseException) -> None:
        if self._telemetry.enabled:
            self._telemetry.emit(
                HookFailed(
                    run_id=payload.run_id,
                    at=trio.current_time(),
                    hook=name,
                    hook_kind=payload.kind,
                    feedback=f"{type(error).__name__}: {message_of(error)}",
                )
            )


def _telemetry(settings: Settings, pipeline: Pipeline, resources: Any) -> Telemetry:
    redactor = Redactor.from_environment(os.environ, deps=resources)
    for each in walk_steps(pipeline):
        if isinstance(each, Step) and each.deps is not None:
            redactor = redactor.knowing(each.deps)
    logging_sink = (LogSink(),) if settings.telemetry.log else ()
    return Telemetry(
        sinks=(*settings.telemetry.sinks, *logging_sink),
        redactor=redactor,
        content=settings.telemetry.content,
        verbose=settings.aros.telemetry.verbose,
    )


def _in_trio(start: Callable[[Host, Outlet | None], Any], *, instead: str) -> PipelineResult:
    library = running_loop()
    if library is not None:
        raise LoopAlreadyRunning(
            f"a {library} loop runs in this thread, and this call would block it: use `await flujo.{instead}(…)`"
        )
    result: PipelineResult = trio.run(start, TRIO, None)
    return result
