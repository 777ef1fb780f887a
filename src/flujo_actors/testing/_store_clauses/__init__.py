"""Clauses of the store conformance suite, one module per guarantee."""
