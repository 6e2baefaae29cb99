"""Names each ratio that is worse than the committed one by more than a tenth; then the exit status is 1.

Ratios depend on caches and instructions too: where the committed one is of another processor, the line says so.

python -m support.compare build/benchmarks benchmarks/results
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

_TOLERATED: Final = 0.1


def worse(now: dict[str, Any], before: dict[str, Any]) -> Iterator[str]:
    """A line for each ratio of a report that is worse than in an earlier report."""
    processor, then = now["machine"]["processor"], before["machine"]["processor"]
    where = "" if processor == then else f" (on {then} then, on {processor} now)"
    for name, was in before["ratios"].items():
        value = now["ratios"].get(name, was)
        less = name in now["less_is_better"]
        if value > was * (1 + _TOLERATED) if less else value < was * (1 - _TOLERATED):
            yield f"{now['benchmark']}: {name} {'rose' if less else 'fell'} from {was:.3g} to {value:.3g}{where}"


def main() -> None:
    """Compare the reports that both folders have."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("now", type=Path)
    parser.add_argument("before", type=Path)
    arguments = parser.parse_args()
    lines = [
        line
        for path in sorted(arguments.now.glob("*.json"))
        if (earlier := arguments.before / path.name).exists()
        for line in worse(json.loads(path.read_text()), json.loads(earlier.read_text()))
    ]
    if lines:
        raise SystemExit("\n".join(lines))


if __name__ == "__main__":
    main()
