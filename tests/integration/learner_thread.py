"""A real learner in a thread of the test, so that the test can see the exact bits that it holds."""

import threading
from pathlib import Path
from typing import Self

from diloco.core.fragments import Layout
from diloco.learner.exchange.orders import Ending, Orders, Wakeup
from diloco.learner.exchange.transfers import TransferCounts
from diloco.learner.learner import Learner
from diloco.learner.options import LearnerOptions
from diloco.spec import DiLoCoJob
from diloco.wire.part_messages import payload_digest

WAIT_SECONDS = 120.0


class LearnerThread:
    """Trains from ``start`` until the end of a ``with``, or of its job."""

    def __init__(self, job: DiLoCoJob, address: str, directory: Path, learner: str) -> None:
        self._orders = Orders(wakeup := Wakeup())
        # Slowed down, because everything that it does is replayed afterwards.
        options = LearnerOptions(
            job, learner, address, directory, speed=0.2, threads=1, device="cpu", hand_in_seconds=0.0
        )
        self._learner = Learner(options, self._orders, wakeup)
        self.ending: Ending | None = None
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    @property
    def counts(self) -> TransferCounts:
        return self._learner._counts

    def wait_for_updates(self, more: int) -> None:
        """Wait until it has received this many more updates."""
        enough = self.counts.updates + more
        polled = threading.Event()
        while self.counts.updates < enough:
            assert self._thread.is_alive(), self.failure
            polled.wait(0.01)

    @property
    def epoch(self) -> int:
        """The number of the syncer's start that its versions belong to."""
        return int(self._learner._shared.holdings.to_join_with()[0].partition(".")[0])

    def held(self, layout: Layout) -> dict[tuple[int, int], str]:
        """(fragment, version) -> digest of what it holds, f32, hexadecimal."""
        holdings = self._learner._shared.holdings
        epoch = holdings.to_join_with()[0]
        every = ((fragment.index, holdings.held(epoch, fragment.index)) for fragment in layout.fragments)
        return {
            (fragment, held.version): payload_digest(held.values.numpy().data.cast("B")).hex()
            for fragment, held in every
            if held is not None
        }

    def wait(self) -> Ending:
        """How it ended, once it has."""
        self._thread.join(WAIT_SECONDS)
        assert self.failure is None
        assert self.ending is not None
        return self.ending

    def start(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._orders.stop("the test has ended")
        if self._thread.ident is not None:
            self._thread.join(WAIT_SECONDS)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.ending = self._learner.run()
        except BaseException as error:  # noqa: BLE001  # the test's thread looks at it
            self.failure = error
        finally:
            self._learner.close()
