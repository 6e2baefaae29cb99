"""Takes ``docs/report.png``, the picture of README, from a run's report: ``make demo report-png``.

Needs Chromium (Debian: ``apt install chromium``).
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTH, HEIGHT = 1280, 1150
"""Pixels: the verdict, the cards, the life of the processes, where the time went, and the losses."""


def main(report: Path, picture: Path) -> int:
    """Take it."""
    browser = shutil.which("chromium")
    if browser is None:
        print("chromium: is not installed; run 'apt install chromium'", file=sys.stderr)
        return 1
    if not report.is_file():
        print(f"{report}: there is no such report; run 'make demo' first", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as profile:
        place = (f"--user-data-dir={profile}", f"--window-size={WIDTH},{HEIGHT}", f"--screenshot={picture.resolve()}")
        return subprocess.run([browser, *FLAGS, *place, report.resolve().as_uri()], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
