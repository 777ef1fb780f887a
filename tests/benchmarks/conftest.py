"""Makes the benchmarks importable, as they are for whoever runs them in the project's root directory."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
