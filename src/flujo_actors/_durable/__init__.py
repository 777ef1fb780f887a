"""Runs that survive their process: the journal, leases and fencing, pauses, and whether code may go on with a run."""
