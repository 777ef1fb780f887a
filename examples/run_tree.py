"""A finished run as a tree with timings, in plain text.

Copy this file into your project if you like the picture: it needs nothing but a `PipelineResult`.
"""

from collections.abc import Iterator, Sequence

from flujo_actors import PipelineResult, StepResult

BAR_WIDTH = 24
EIGHTHS = " ▏▎▍▌▋▊▉"
GREEN, RED, DIM, RESET = "\x1b[32m", "\x1b[31m", "\x1b[2m", "\x1b[0m"


def draw(result: PipelineResult, *, color: bool = False) -> str:
    """The run, one line per step: how it ended, how long it took, and what is worth knowing about it."""
    total = sum(step.latency_s for step in result.step_history)
    rows = list(_rows(result.step_history, ""))
    width = max((len(label) for label, _ in rows), default=0)
    lines = [_line(label.ljust(width), step, total) for label, step in rows]
    text = "\n".join([f"{result.status} in {_time(total)}", *lines])
    return text if color else _without_color(text)


def _rows(steps: Sequence[StepResult], indent: str) -> Iterator[tuple[str, StepResult]]:
    for step in steps:
        last = step is steps[-1]
        yield f"{indent}{'└─' if last else '├─'} {'✓' if step.success else '✗'} {step.name}", step
        yield from _rows(step.step_history, indent + ("   " if last else "│  "))


def _line(label: str, step: StepResult, total: float) -> str:
    mark = "✓" if step.success else "✗"
    painted = label.replace(mark, f"{GREEN if step.success else RED}{mark}{RESET}", 1)
    bar = _bar(step.latency_s / total if total else 0.0)
    return f"{painted}  {_time(step.latency_s):>7}  {bar}  {DIM}{_note(step)}{RESET}"


def _bar(share: float) -> str:
    eighths = max(1, round(share * BAR_WIDTH * 8))
    return ("█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()).ljust(BAR_WIDTH)


def _note(step: StepResult) -> str:
    if not step.success:
        return step.feedback or ""
    if step.metadata.get("fallback_triggered"):
        return f"fell back: {step.metadata['original_error']}"
    if "loops" in step.metadata:
        return f"{step.metadata['loops']} turns"
    if "branch" in step.metadata:
        return f"took branch {step.metadata['branch']}"
    return f"{step.attempts} attempts" if step.attempts > 1 else ""


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "< 1 ms"


def _without_color(text: str) -> str:
    for code in (GREEN, RED, DIM, RESET):
        text = text.replace(code, "")
    return "\n".join(line.rstrip() for line in text.splitlines())
