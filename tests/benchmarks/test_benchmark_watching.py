"""The benchmark of watching works, in small."""

from benchmarks.watching import report


def test_watching_is_measured() -> None:
    """Reading, folding, drawing and the lag, a line each."""
    lines = list(report(share=0.002))
    assert lines[0] == "records of a run of 20 branches: 84"
    assert [line.partition(":")[0] for line in lines[1:]] == [
        "read without bodies",
        "share of a core for its live view",
        "lag of a watcher in the same process",
    ]
