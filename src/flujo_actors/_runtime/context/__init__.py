"""Shared state of a run: context, isolation of attempts, merges."""
