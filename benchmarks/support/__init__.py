"""What benchmarks share. It finds ``testbed`` beside them, which is not installed."""

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY))
