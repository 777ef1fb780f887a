"""A desk each: one file, one process, one environment."""
