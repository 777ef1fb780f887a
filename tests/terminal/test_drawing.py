"""The picture of a run."""

from flujo_actors import PipelineResult, StepResult
from flujo_actors.terminal import draw


def result_of(*steps: StepResult, status: str = "completed") -> PipelineResult:
    return PipelineResult(run_id="r", status=status, step_history=steps)


def test_bars_are_as_long_as_their_share_of_the_run() -> None:
    """A step that took all the time fills its bar, one that took none still shows."""
    whole, nothing = StepResult(name="whole", latency_s=2.0), StepResult(name="nothing", latency_s=0.0)
    first, second = draw(result_of(whole, nothing)).splitlines()[1:]
    assert first == "├─ ✓ whole     2.00 s  " + "█" * 24
    assert second == "└─ ✓ nothing   < 1 ms  ▏"


def test_a_failed_step_says_why() -> None:
    """The feedback of a failure stands beside its bar."""
    failed = StepResult(name="write", success=False, feedback="no ink", latency_s=0.5)
    assert draw(result_of(failed, status="failed")).splitlines() == [
        "failed in 500 ms",
        "└─ ✗ write   500 ms  " + "█" * 24 + "  no ink",
    ]


def test_notes_name_what_is_worth_knowing() -> None:
    """Retries, loops, branches and fallbacks are told from the results alone."""
    steps = (
        StepResult(name="retried", attempts=3),
        StepResult(name="looped", metadata={"loops": 4}),
        StepResult(name="branched", metadata={"branch": "left"}),
        StepResult(name="saved", metadata={"fallback_triggered": True, "original_error": "no net"}),
    )
    drawn = draw(result_of(*steps))
    for note in ("3 attempts", "4 turns", "took branch left", "fell back: no net"):
        assert note in drawn


def test_color_changes_nothing_but_color() -> None:
    """Without its color codes the colored picture is the plain one."""
    result = result_of(StepResult(name="a", latency_s=0.1, attempts=2, step_history=(StepResult(name="b"),)))
    colored = draw(result, color=True)
    for code in ("\x1b[32m", "\x1b[2m", "\x1b[0m"):
        assert code in colored
        colored = colored.replace(code, "")
    assert "\n".join(line.rstrip() for line in colored.splitlines()) == draw(result)


def test_a_run_without_steps_is_one_line() -> None:
    """A run that was aborted before its first step still has a picture."""
    assert draw(result_of(status="aborted")) == "aborted in < 1 ms"
