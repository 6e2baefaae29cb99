"""Benchmarks start as their help says, from a checkout with nothing on the path but what is installed."""

import subprocess
import sys
from pathlib import Path

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
IMPORT_EACH = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
for path in sys.argv[2:]:
    runpy.run_path(path)
"""


def test_each_benchmark_finds_what_it_imports(tmp_path: Path) -> None:
    paths = sorted(map(str, BENCHMARKS.glob("*.py")))
    assert len(paths) > 10
    subprocess.run([sys.executable, "-c", IMPORT_EACH, str(BENCHMARKS), *paths], cwd=tmp_path, env={}, check=True)
