"""Shared state of a run: the free-form context, isolation of attempts and merging of branches."""
