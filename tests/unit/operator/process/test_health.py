import asyncio
import socket

import pytest
from prometheus_client import CollectorRegistry

from diloco.local.launch import free_ports
from diloco.runtime.process.heartbeat import Heartbeat
from diloco_operator.process.health import Health


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")
def test_all_addresses_of_both_families_are_served() -> None:
    async def connect() -> None:
        (port,) = free_ports(1)
        async with Health(CollectorRegistry(), Heartbeat()).served(f"[::]:{port}"):
            for host in ("127.0.0.1", "::1"):
                _, writer = await asyncio.open_connection(host, port)
                writer.close()
                await writer.wait_closed()

    asyncio.run(connect())
