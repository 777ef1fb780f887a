"""Redactor: removal of secrets from emitted text."""
