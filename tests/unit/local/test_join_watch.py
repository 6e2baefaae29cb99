from types import SimpleNamespace
from typing import Any

import pytest

from diloco.local.fleet import ProcessState
from diloco.local.join_watch import JoinWatch

LINE = "12:00:00.000 here/cpu/0 warning: cannot join (connection refused); retrying"


class Scene:
    def __init__(self) -> None:
        self.now, self.told = 0.0, list[str]()
        self.learner, self.syncer = self.process("here/cpu/0", LINE), self.process("syncer", "")
        self.syncer.proven = True
        self.watch = JoinWatch(self.told.append, lambda: self.now)

    def process(self, name: str, line: str) -> Any:
        child: Any = SimpleNamespace(last_line=lambda: child.line, line=line)
        return SimpleNamespace(
            name=name, child=child, state=ProcessState.RUNNING, started_at=0.0, joined=False, proven=False
        )

    def look(self, at: float) -> list[str]:
        self.now = at
        self.watch.look(SimpleNamespace(syncer=self.syncer, learners={"": self.learner}))  # type: ignore[arg-type]
        return self.told


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_why_no_learner_has_joined_is_told_once_and_again_if_it_changes(scene: Scene) -> None:
    assert scene.look(19.0) == []
    says = "no learner has joined yet; here/cpu/0 logged last: warning: cannot join (connection refused); retrying"
    assert scene.look(20.0) == [says]
    assert scene.look(200.0) == [says]
    scene.learner.child.line = "12:00:00.000 here/cpu/0 training on cpu"
    assert scene.look(300.0)[1:] == ["no learner has joined yet; here/cpu/0 logged last: training on cpu"]


def test_a_syncer_that_does_not_serve_is_named(scene: Scene) -> None:
    scene.syncer.proven = False
    assert scene.look(20.0) == ["the syncer does not serve yet; syncer logged nothing"]


def test_nothing_is_told_once_one_has_joined(scene: Scene) -> None:
    scene.learner.joined = True
    assert scene.look(99.0) == []
