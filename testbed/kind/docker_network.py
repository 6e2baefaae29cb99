"""The Docker network that the nodes are on: of the test bed's own, so that it can go with the last cluster."""

from testbed.kind.commands import CommandFailedError, run, succeeds

NAME = "diloco-kind"
# For where Docker's own pools are used up: not what clusters use inside (10.96.0.0/16, 10.244.0.0/16).
_SUBNETS = tuple(f"10.{second}.0.0/24" for second in range(190, 200))


def ensure() -> str:
    """The network's name; made if it is not there.

    Raises:
        CommandFailedError: Docker makes none.
    """
    if succeeds("docker", "network", "inspect", NAME):
        return NAME
    for flags in ((), *(("--subnet", subnet) for subnet in _SUBNETS)):
        try:
            run("docker", "network", "create", "--driver", "bridge", *flags, NAME)
        except CommandFailedError as error:
            failed = error
        else:
            return NAME
    raise failed


def remove_if_unused() -> None:
    """Nothing is left behind; where a cluster is still on it, Docker refuses, which is right."""
    succeeds("docker", "network", "rm", NAME)
