"""Granular steps: every model request and every tool call is a unit that is committed by itself."""
