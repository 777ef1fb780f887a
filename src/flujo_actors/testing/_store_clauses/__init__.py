"""The clauses of the store conformance suite, one module for each thing that is promised."""
