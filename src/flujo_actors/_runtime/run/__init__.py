"""Shared parts of one run: messages, hooks, readers, calls of user code."""
