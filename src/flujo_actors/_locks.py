"""Locks that all runs of a process share; the pure core knows none."""

from __future__ import annotations

import threading

QUOTA_LOCK = threading.RLock()
"""Held while quotas are asked and changed: model calls may be made on another thread than the run."""
