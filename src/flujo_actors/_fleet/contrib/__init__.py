"""Contributed engines: Ray and DBOS."""
