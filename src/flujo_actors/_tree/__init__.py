"""The tree of a run: how a pipeline becomes tasks, each in the nursery of the one above it."""
