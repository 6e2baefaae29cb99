"""Real clusters for tests and trials, from a bare machine.

python -m testbed.kind up                    # a cluster with the project's images; it stays
python -m testbed.kind down                  # all that was brought up here; --name NAME: that one
python -m testbed.kind set-up programs       # builds what tests without a cluster want
python -m testbed.kind set-up NAME=1 ...     # builds all; then makes clusters, paused
python -m testbed.kind run STEP ...          # steps of `make test`; KEEP_CLUSTERS=1 leaves its cluster up
python -m testbed.kind --clusters 2 run clusters test-clusters    # a cluster for each of two workers
python -m testbed.kind --clusters 2 --small 1 run ...             # and a third one of a single node
"""

import argparse
import signal
import sys
import time
from types import FrameType

from diloco.runtime.process.exits import EXIT_INTERRUPTED
from testbed.kind import bed, clusters, steps
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
    parser.add_argument("what", choices=["up", "down", "set-up", "run"])
    parser.add_argument("arguments", nargs="*", help="of `run`: programs, clusters, or targets of the Makefile")
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
            return steps.run(options.arguments, large | small)
        case "set-up" if options.arguments == ["programs"]:
            steps.await_programs()
        case "set-up":
            bed.build()
            for argument in options.arguments:
                each, _, workers = argument.partition("=")
                bed.prepare(each, int(workers))
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


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
