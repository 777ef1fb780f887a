"""Makes the examples importable, as they are for whoever runs one: by their own directory."""

import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
