"""The calls of a learner in these tests: a session, a pull, and a push in pieces."""

import os

from diloco.wire.convert import pack
from diloco.wire.messages import Join, PullRequest
from tests.support.raw_wire import push_header, push_messages

STALL_SECONDS = 2.0
"""After which the server of these tests gives up a call that does not move."""
PAYLOAD = os.urandom(8 << 20)
"""Of fragment 7, which `REQUEST` asks for."""
JOIN = Join("job", "a/b/0", "instance", "layout")
REQUEST = PullRequest("a/b/0", 1, 7, 3, "epoch")

DATA = os.urandom(3000)
WHOLE = push_messages(DATA, 1000)
HEADER = pack(push_header(3000))
