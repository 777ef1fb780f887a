"""The calls of agents and models, and what their output means."""
