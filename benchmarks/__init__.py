"""What the runtime costs, beside what one would write by hand: `python -m benchmarks`."""
