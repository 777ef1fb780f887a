"""Lint rules of blueprints, their findings and fixes."""
