"""The Docker network that the nodes are on: of the test bed's own, so that it can go with the last cluster."""

from testbed.kind.commands import CommandFailedError, run, succeeds

NAME = "diloco-kind"
_NO_ADDRESSES_LEFT = ("could not find an available", "all predefined address pools have been fully subnetted")
# Where Docker's own pools are used up: not what clusters use inside (10.96.0.0/16, 10.244.0.0/16).
_SUBNETS = tuple(f"10.{second}.0.0/24" for second in range(190, 200))


def ensure() -> str:
    """The network's name; made if it is not there.

    Raises:
        CommandFailedError: Docker makes none.
    """
    if succeeds("docker", "network", "inspect", NAME):
        return NAME
    command = ("docker", "network", "create", "--driver", "bridge")
    try:
        run(*command, NAME)
    except CommandFailedError as error:
        if not any(words in error.output for words in _NO_ADDRESSES_LEFT):
            raise
        last = error
    else:
        return NAME
    for subnet in _SUBNETS:
        try:
            run(*command, "--subnet", subnet, NAME)
        except CommandFailedError as error:
            last = error
        else:
            return NAME
    raise last


def remove_if_unused() -> None:
    """Nothing is left behind; where a cluster is still on it, Docker refuses, which is right."""
    succeeds("docker", "network", "rm", NAME)
