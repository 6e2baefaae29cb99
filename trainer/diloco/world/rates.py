"""What the connections of a learner carry on a long link. Arithmetic; pure."""

import math
from typing import Final

CONNECTION_BYTES: Final = 2 << 20
"""What one connection keeps under way on a long link (ours): of Linux's largest receive buffer, 6 MiB, TCP offers about
a third to data that has not been read. `benchmarks/link.py` measures it at 1 Gbit/s and 150 ms: 115 Mbit/s for each of
eight connections."""


def connections_for(bytes_per_second: float, round_trip_seconds: float) -> int:
    """Connections that together keep the bandwidth-delay product under way."""
    return max(1, math.ceil(bytes_per_second * round_trip_seconds / CONNECTION_BYTES))


def bytes_per_second_of(connections: int, round_trip_seconds: float) -> float:
    """What so many connections carry at most; without a round trip any rate."""
    return connections * CONNECTION_BYTES / round_trip_seconds if round_trip_seconds else math.inf
