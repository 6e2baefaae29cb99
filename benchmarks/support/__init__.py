"""What benchmarks share. It finds ``testbed`` beside them, which is not installed."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
