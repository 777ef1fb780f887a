"""Model agents: pydantic-ai on the runtime. Importing this package imports pydantic-ai."""
