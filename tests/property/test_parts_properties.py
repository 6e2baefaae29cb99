"""Whatever order, loss and repetition parts meet with, the payload is made exactly once."""

import random

from hypothesis import given
from hypothesis import strategies as st

from diloco.wire.part_messages import PartsReceiver, part_checksum, part_message, payload_digest
from diloco.wire.parts import BLOCK_BYTES, Grid, PartsToSend


class Link:
    """Connections that carry parts one way and what is held back, and break."""

    def __init__(self, payload: bytes, seed: int) -> None:
        self.random = random.Random(seed)
        self.payload = memoryview(payload)
        self.grid = Grid(len(payload), BLOCK_BYTES)
        self.buffer = bytearray(len(payload))
        self.receiver = PartsReceiver(memoryview(self.buffer), self.grid)
        self.sender = PartsToSend(self.grid.count)
        self.under_way: dict[int, list[bytes]] = {}
        self.untold: dict[int, list[int]] = {}
        self.connections = 0
        self.now = 0.0
        self.sent = 0

    def open(self) -> None:
        self.connections += 1
        self.under_way[self.connections], self.untold[self.connections] = [], []
        self.sender.opened(self.connections, self.now)
        self.sender.acknowledged(self.receiver.held.ranges, self.now)
        self.sender.reported()

    def breaks(self, connection: int) -> None:
        """What is under way is lost, and so is what was not told."""
        del self.under_way[connection], self.untold[connection]
        self.sender.closed(connection, self.now)
        self.receiver.held.closed(connection)

    def send(self, connection: int) -> None:
        part = self.sender.take(connection, self.now)
        if part is not None:
            self.sent += 1
            self.under_way[connection].append(
                part_message(self.payload, self.grid, part, part_checksum(self.payload, self.grid, part))
            )

    def arrive(self, connection: int) -> None:
        if self.under_way[connection]:
            self.untold[connection].append(self.receiver.add(connection, self.under_way[connection].pop(0)))

    def tell(self, connection: int) -> None:
        told, self.untold[connection] = self.untold[connection], []
        self.sender.acknowledged(sorted((part, part + 1) for part in told), self.now)

    def step(self, breaking: float) -> None:
        self.now += self.random.choice((0.0, 0.01, 5.0))
        if not self.under_way:
            self.open()
        connection = self.random.choice(list(self.under_way))
        if self.random.random() < breaking:
            self.breaks(connection)
        elif len(self.under_way) < 4 and self.random.random() < 0.2:
            self.open()
        else:
            self.random.choice((self.send, self.arrive, self.tell))(connection)


@given(st.integers(1, 12), st.integers(1, BLOCK_BYTES), st.integers(0, 1 << 32), st.sampled_from((0.0, 0.02, 0.1)))
def test_any_order_loss_and_repetition_gives_the_payload_once(
    parts: int, last_bytes: int, seed: int, breaking: float
) -> None:
    payload = random.Random(seed).randbytes((parts - 1) * BLOCK_BYTES + last_bytes)
    link = Link(payload, seed)
    for _ in range(20_000):
        if link.sender.whole:
            break
        link.step(breaking)
    assert link.sender.whole
    assert link.receiver.held.whole
    assert link.buffer == payload
    assert link.receiver.finish(b"") == payload_digest(memoryview(payload))
    if breaking == 0.0:
        assert link.sent == link.grid.count + link.sender.sent_again


@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 1 << 32))
def test_without_loss_and_stalls_nothing_is_sent_again(parts: int, connections: int, seed: int) -> None:
    drawn = random.Random(seed)
    sender = PartsToSend(parts)
    for connection in range(connections):
        sender.opened(connection, 0.0)
    out: list[int] = []
    given_out: list[int] = []
    while not sender.whole:
        part = sender.take(drawn.randrange(connections), 0.5)
        if part is not None:
            out.append(part)
            given_out.append(part)
        elif out:
            arrived = out.pop(drawn.randrange(len(out)))
            sender.acknowledged([(arrived, arrived + 1)], 0.5)
    assert given_out == list(range(parts))
    assert sender.sent_again == 0
