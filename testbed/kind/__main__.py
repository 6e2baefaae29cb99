"""Real clusters for tests and trials, from a bare machine.

python -m testbed.kind up                    # a cluster with the project's images; it stays
python -m testbed.kind down                  # all that was brought up here; --name NAME: that one
python -m testbed.kind run -- COMMAND ...    # up, COMMAND, down; KEEP_CLUSTERS=1 leaves it up
python -m testbed.kind --clusters 2 run -- pytest -n 2 ...    # a cluster for each of two workers
python -m testbed.kind --clusters 2 --small 1 run -- ...      # and a third one of a single node
python -m testbed.kind programs              # what tests without a cluster want: helm and an API server
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType, MappingProxyType

from diloco.runtime.exits import EXIT_INTERRUPTED
from testbed.kind import bed, clusters
from testbed.kind.cache import Cache
from testbed.kind.commands import CommandFailedError, Unavailable
from testbed.kind.guard import NotOursError

_CANNOT = 3


def main() -> int:
    """Do what the arguments say; 3 where this machine can have no clusters."""
    parser = argparse.ArgumentParser(
        prog="python -m testbed.kind", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--name", help="the cluster's (DILOCO_KIND_CLUSTER); `down` without it: all")
    parser.add_argument("--workers", type=int, default=1, help="nodes beside the control plane's")
    parser.add_argument("--clusters", type=int, default=1, help="how many `run` brings up: NAME, NAME-2, NAME-3 ...")
    parser.add_argument("--small", type=int, default=0, help="how many more it brings up after those, of one node each")
    parser.add_argument("--meanwhile", metavar="COMMAND", default="", help="what `run` runs while clusters come up")
    parser.add_argument("what", choices=["up", "down", "run", "programs"])
    parser.add_argument("command", nargs="*", help="what `run` runs")
    options = parser.parse_args()
    # Ended from outside, it cleans up as after a Ctrl-C.
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return _do(options)
    except Unavailable as why:
        sys.stderr.write(f"kind: no clusters: {why}\n")
        return _CANNOT
    except (CommandFailedError, NotOursError) as error:
        sys.stderr.write(f"kind: {error}\n")
        return 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _do(options: argparse.Namespace) -> int:
    name = options.name or clusters.DEFAULT_NAME
    match options.what:
        case "run":
            large = {clusters.numbered(name, index): options.workers for index in range(options.clusters)}
            small = {clusters.numbered(name, options.clusters + index): 0 for index in range(options.small)}
            return _run(large | small, options)
        case "programs":
            bed.programs()
        case "down":
            bed.down(options.name)
        case _:
            _up(name, options.workers)
    return 0


def _up(name: str, workers: int) -> None:
    started = time.monotonic()
    made = bed.up(name, workers=workers, kept=True)
    made.images()
    sys.stderr.write(f"kind: {name} is up ({time.monotonic() - started:.0f} s)\n")
    sys.stdout.write(f"export KUBECONFIG={made.cluster.kubeconfig} PATH={made.path()}:$PATH\n")


def _run(names: dict[str, int], options: argparse.Namespace) -> int:
    """Run the command with clusters of these names, each with so many nodes beside the control plane's."""
    unavailable: dict[str, str] = {}
    cache = Cache.of_user()
    try:
        with ExitStack() as in_use:
            for name in names:
                in_use.enter_context(cache.using(name))
            first = shlex.split(options.meanwhile)
            meanwhile = in_use.enter_context(_started(first)) if first else None
            try:
                for name, workers in names.items():
                    bed.up(name, workers=workers).images()
            except Unavailable as why:
                sys.stderr.write(f"kind: no clusters: {why}\n")
                unavailable = {bed.UNAVAILABLE: str(why)}
            if meanwhile is not None and (failed := meanwhile.wait()):
                return failed
            with _started(options.command, unavailable) as process:
                # A terminal sends Ctrl-C to both: the command ends in its own way, and then this does.
                signal.signal(signal.SIGINT, lambda *_: None)
                signal.signal(signal.SIGTERM, lambda *_: process.terminate())
                return process.wait()
    finally:
        for name in names:
            bed.end_of_use(name)


@contextmanager
def _started(command: list[str], env: Mapping[str, str] = MappingProxyType({})) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has ended when this does."""
    process = subprocess.Popen(command, env={**os.environ, **env})
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
