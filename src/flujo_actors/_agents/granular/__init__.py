"""Granular steps: every model request and tool call is a committed unit."""
