"""Process-wide locks; the pure core has none."""

from __future__ import annotations

import threading

QUOTA_LOCK = threading.RLock()
"""Lock of all quotas: model calls may use other threads."""
