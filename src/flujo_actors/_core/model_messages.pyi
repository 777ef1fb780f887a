"""Type of a model agent's messages, for type checkers: the core loads no pydantic-ai."""

from pydantic_ai.messages import ModelMessage as ModelMessage
