"""A fragment's way from a learner's model to the syncer and back uses the memory of the round before."""

import resource

import torch
from torch import nn

from diloco.core.merge.codecs import codec_named
from diloco.learner.training.capture import Capture, Reader
from diloco.model.fragments import layout_of, write_fragment
from diloco.syncer.peers.inbox import Inbox
from diloco.wire.messages import PushHeader
from tests.unit.learner.exchange.pulls import Bench

_CODEC = codec_named("None")


class _Way:
    """One fragment of 8.4 MiB: 2,148 pages, which a way without memory to use again takes twice."""

    def __init__(self) -> None:
        module = nn.Linear(1100, 2000, bias=False)
        self.module, self.layout = module, layout_of(module, 1)
        self.reader = Reader(module, torch.device("cpu"))
        self.inbox = Inbox(self.layout, _CODEC)
        self.anchor = self.reader.read(self.layout.fragments[0])[0]
        self.pulls = Bench(downlink=False, whole=self.anchor.clone())

    def round(self, version: int) -> int:
        """Returns how many pages were new."""
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        fragment = self.layout.fragments[0]
        values, copied = self.reader.read(fragment)
        capture = Capture(0, version - 1, 1, 1, self.anchor, values, copied)
        payload = _CODEC.encode(capture.delta)
        header = PushHeader("r/p/0", 1, 0, version, 1, version - 1, 1, 1, "None", payload.numel(), "1")
        self.inbox.ask(header.key)
        self.inbox.open(header, lambda: None).copy_(payload)
        assert self.inbox.accept(header.key)
        self.inbox.void_version(0, version)
        (arrival,) = self.pulls.pull()
        write_fragment(self.module, fragment, arrival.values)
        self.anchor = arrival.values
        return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_after_its_first_round_a_fragment_takes_no_new_pages() -> None:
    way = _Way()
    counts = [way.round(version) for version in range(1, 6)]
    assert max(counts[2:]) < 200, counts
