"""One run as the command shows it: rows or JSON lines on standard error, streamed text on standard output."""

from __future__ import annotations

import contextlib
import shlex
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .._core.light_outcomes import LightOutcomes
from .._core.outcomes import Chunk, Failure, PipelineResult
from .._core.outline import Outline
from .._core.paths import ROOT, StepPath, is_top_level, named
from .._core.safe_text import one_line
from .._dsl.shown_chunks import NO_CHUNKS, shown_chunks
from ..stores._passwords import without_password
from ..terminal._displays import Display, Quiet
from ..terminal._modes import Progress
from ..terminal._watching import showing, text_of
from .call import Call
from .journal_lines import JournalLines
from .run_output import write_text

if TYPE_CHECKING:
    from .._handle import RunHandle
    from .._runner import Flujo
    from .run import RunOptions

_LEFT_TOLD = 5


class RunView:
    """What is shown of one run, over all its parts."""

    def __init__(self, call: Call, flujo: Flujo, options: RunOptions, *, target: str | None, run_id: str) -> None:
        self._call, self._flujo, self._options, self._target = call, flujo, options, target
        self._display: Display = Quiet()
        self._outline = Outline()
        self._progress: Progress = "quiet" if call.quiet or options["events"] else options["progress"]
        self._last = named(ROOT, flujo.pipeline.named_steps[-1][1]) if flujo.pipeline.named_steps else ROOT
        self.run_id = run_id
        self.streamed_all = False
        """Whether the output has been written while it was made."""

    @contextlib.contextmanager
    def open(self) -> Iterator[None]:
        """A time in which the run is shown."""
        color, chunks = self._call.color, self._options["chunks"]
        with showing(sys.stderr, self._progress, color=color, chunks=chunks, title=self.run_id) as self._display:
            yield
        self._display = Quiet()

    async def follow(self, run: RunHandle) -> PipelineResult:
        """Show a run while it runs; its result."""
        self._show_chunks(run)
        rows, journal = LightOutcomes(at=time.time()), self._journal()
        self._outline = Outline([rows.first])
        if journal is None:
            self._display.take(rows.first)
        async for outcome in run:
            if journal is not None:
                journal.begin(self.run_id)
            self._tell(outcome, rows, rowless=journal is not None)
        result = await run
        if journal is not None:
            journal.finish(result.run_id)
        else:
            self._display.take(rows.end(result, at=time.time()))
        return result

    def _show_chunks(self, run: RunHandle[Any, Any]) -> None:
        """Nobody streams for whom nothing is shown."""
        if self._options["events"] or self._display.shows_text:
            return
        last = [self._last] if self._options["stream"] else []
        run.show_chunks(shown_chunks(self._flujo.pipeline, last) or NO_CHUNKS)

    def _journal(self) -> JournalLines | None:
        """With a store, JSON lines are what is in it."""
        if self._progress != "json" or self._flujo._store is None:
            return None
        return JournalLines(self._flujo._store, self._display)

    def _tell(self, outcome: Any, rows: LightOutcomes, *, rowless: bool) -> None:
        if self._options["events"]:
            self._event(outcome)
        if isinstance(outcome, Chunk):
            self._text(outcome)
            return
        record = rows.record(outcome, at=time.time())
        if record is not None:
            self._outline.take(record)
            if not rowless:
                self._display.take(record)
        if isinstance(outcome, Failure) and is_top_level(StepPath(outcome.path)):
            self.streamed_all = False

    def _event(self, outcome: object) -> None:
        from .._json_text import to_json

        sys.stderr.write(f"{to_json(outcome, plain=True)}\n")
        sys.stderr.flush()

    def _text(self, chunk: Chunk) -> None:
        text = text_of(chunk.data)
        self._display.text(StepPath(chunk.path), text)
        if self._options["stream"] and chunk.path.partition("/")[0] == self._last and isinstance(chunk.data, str):
            self.streamed_all = True
            write_text(text)

    # --- what is said at the end ---

    def say(self, text: str) -> None:
        """A line for people."""
        self._call.say(text)

    def tell_end(self, result: PipelineResult) -> None:
        """What else there is to say of a result."""
        if self._options["events"]:
            self._event(result)
        if self.streamed_all and not self._options["as_json"]:
            write_text("\n")
        match result.status:
            case "failed" | "aborted" if self._progress == "quiet" and not self._options["events"]:
                sys.stderr.write(f"{result.status}: {one_line(result.feedback or '')}\n")
            case "paused":
                self._tell_question(result)
            case _:
                pass

    def _tell_question(self, result: PipelineResult) -> None:
        token = shlex.quote(str(result.state_token))
        self.say(f"paused: {result.feedback}")
        sys.stderr.write(f"token: {one_line(str(result.state_token))}\n")  # also for those who want silence
        if self._flujo._store is None:
            self.say("without a store nothing can be resumed: say --store URL, or --ask to answer here")
        else:
            self.say(f"answer with: flujo-actors runs answer {token} VALUE{self._where()}")

    def say_how_to_resume(self) -> None:
        """After a run was stopped."""
        if self._flujo._store is None:
            self.say("without a store nothing can be resumed")
            return
        run_id, target = shlex.quote(self.run_id), shlex.quote(self._target) if self._target else ""
        self.say(f"resume with: flujo-actors runs resume {run_id} {target}{self._where()}".rstrip())

    def _where(self) -> str:
        given = self._options["store"]
        return f" --store {shlex.quote(without_password(given))}" if given else ""

    def left(self) -> str:
        """What was under way when the process had to end at once."""
        names = [one_line(node.name) for node in self._outline.steps() if node.status == "running" and not node.running]
        more = f" and {len(names) - _LEFT_TOLD} more" if len(names) > _LEFT_TOLD else ""
        told = ", ".join(names[:_LEFT_TOLD]) + more if names else "nothing was under way"
        return f"left as it was: {told}" if names else told
