"""Command `flujo-actors`: one lazily loaded module per command."""
