"""What the syncer's side of the wire consists of, as one value: each part uses some of the others."""

from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from diloco.core.engine.events import Event
from diloco.core.fragments import Layout
from diloco.core.merge.codec import Codec
from diloco.syncer.peers.admission import Admission
from diloco.syncer.peers.claims import Claims
from diloco.syncer.peers.dealing import Dealing
from diloco.syncer.peers.inbox import Inbox
from diloco.syncer.peers.link_meter import LinkMeter
from diloco.syncer.peers.loads import Loads
from diloco.syncer.peers.posted_pulls import PostedPulls
from diloco.syncer.reporting.curves import Curves
from diloco.syncer.reporting.decisions import Decisions
from diloco.syncer.reporting.metrics import SyncerMetrics
from diloco.syncer.store import FragmentStore
from diloco.wire.channel import POSTED_SECONDS


@dataclass
class Collaborators:
    """Owned by the event loop."""

    job: str
    epoch: str
    """As on the wire."""
    layout: Layout
    codec: Codec
    store: FragmentStore
    """The global model."""
    claims: Claims
    dealing: Dealing
    admission: Admission
    metrics: SyncerMetrics
    checks: Executor
    """Where payloads are checked."""
    post: Callable[[Event], None]
    clock: Callable[[], float]

    def __post_init__(self) -> None:
        """Make those that need nothing else."""
        self.inbox = Inbox(self.layout, self.codec)
        self.posted = PostedPulls(POSTED_SECONDS)
        self.meter = LinkMeter(self.clock)
        self.curves = Curves()
        self.decisions = Decisions()
        self.loads = Loads(self.clock)
