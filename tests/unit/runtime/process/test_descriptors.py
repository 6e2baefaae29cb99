import pytest

from diloco.runtime.process.descriptors import RESERVED, share_of_peers


@pytest.mark.parametrize(("limit", "peers"), [(64, 64), (1024, 768), (20_000, 19_744), (1 << 30, 100_000)])
def test_peers_never_get_what_files_and_health_checks_need(limit: int, peers: int) -> None:
    assert share_of_peers(limit) == peers
    assert limit < 512 or limit - peers >= RESERVED
