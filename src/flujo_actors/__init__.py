"""LLM-agent pipelines as supervised trio actors."""
