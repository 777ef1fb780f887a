"""Runtime of a run: supervision tree, agent calls, messages and context."""
