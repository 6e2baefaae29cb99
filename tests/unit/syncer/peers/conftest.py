import asyncio

import pytest

from tests.support.syncer_peers import SyncerPeers


@pytest.fixture
def peers(runner: asyncio.Runner) -> SyncerPeers:
    async def made() -> SyncerPeers:
        return SyncerPeers()

    return runner.run(made())
