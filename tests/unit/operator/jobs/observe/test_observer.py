import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.cache import Cache
from diloco_operator.decide.observed import LearnerReport, Object, Sessions, SyncerAway, SyncerStatusView
from diloco_operator.jobs.jobs import JobKey
from diloco_operator.jobs.observe.kueue import Kueue
from diloco_operator.jobs.observe.memory import Memory
from diloco_operator.jobs.observe.observer import AWAY_AFTER_QUESTIONS, NO_ADDRESS, NOT_READY, SYNCER_SECONDS, Observer
from diloco_operator.jobs.observe.places import Places
from diloco_operator.jobs.observe.syncer import Planned
from diloco_operator.shares import Room

FIRST, SECOND = (SyncerStatusView(job="demo", epoch=epoch, phase="Training") for epoch in (1, 2))
AWAY = SyncerAway("no answer within 5 s")
REGIONS = [{"name": "eu", "pools": [{"name": "slow", "learners": 2}]}]
JOB: Object = {"metadata": {"namespace": "train", "name": "demo", "uid": "1"}, "spec": {"regions": REGIONS}}
NOBODY = object.__new__(Api)
"""No request is sent here."""
Answer = SyncerStatusView | SyncerAway


@dataclass
class Scene:
    """An observer with a scripted syncer and clock."""

    answers: list[Answer]
    ready: int = 1
    address: str = "10.96.0.7"
    now: float = 0.0
    memory: Memory = field(init=False)
    room: Room = field(default_factory=lambda: Room(90))

    def __post_init__(self) -> None:
        self.memory = Memory("1", lambda: self.now)

    async def ask(self, job: JobKey, address: str, planned: Planned) -> Answer:
        assert (job, address, planned) == (("train", "demo"), self.address, {"eu/slow": 2})
        return self.answers.pop(0)

    def heard(self, later_seconds: float = SYNCER_SECONDS) -> Answer | None:
        self.now += later_seconds
        cache = Cache(labels.JOB)
        metadata = {"namespace": "train", "name": "demo-syncer", "uid": "2", "labels": {labels.JOB: "demo"}}
        owned = {**metadata, "ownerReferences": [{"uid": "1", "controller": True}]}
        cache.seen("Deployment", {"metadata": owned, "spec": {"replicas": 1}, "status": {"readyReplicas": self.ready}})
        cache.seen("Service", {"metadata": owned, "spec": {"clusterIP": self.address}})
        kueue = Kueue(NOBODY, lambda: self.now, lambda: "")
        observer = Observer(Places(NOBODY, cache, ()), self, lambda: self.now, lambda *_: False, kueue, self.room)  # type: ignore[arg-type]
        return asyncio.run(observer.observe(JOB, self.memory)).syncer

    def all_heard(self) -> Iterable[Answer | None]:
        while self.answers:
            yield self.heard()


def test_an_answer_is_good_for_a_moment() -> None:
    scene = Scene([FIRST, SECOND])
    assert [scene.heard(), scene.heard(SYNCER_SECONDS / 2), scene.heard(SYNCER_SECONDS / 2)] == [FIRST, FIRST, SECOND]


def test_a_syncer_that_answered_is_away_after_several_questions_in_a_row() -> None:
    silent = [AWAY] * AWAY_AFTER_QUESTIONS
    assert list(Scene([FIRST, *silent]).all_heard()) == [FIRST] * AWAY_AFTER_QUESTIONS + [AWAY]
    assert list(Scene([FIRST, *silent[1:], SECOND, *silent[1:]]).all_heard()) == (
        [FIRST] * AWAY_AFTER_QUESTIONS + [SECOND] * AWAY_AFTER_QUESTIONS
    )


def test_a_syncer_that_never_answered_is_away_until_its_first_answer() -> None:
    assert list(Scene([AWAY, FIRST]).all_heard()) == [AWAY, FIRST]


def test_a_syncer_without_an_address_is_away_without_a_request() -> None:
    assert Scene([], address="None").heard() == NO_ADDRESS


@pytest.mark.parametrize("before", [[], [FIRST], [FIRST, AWAY]])
def test_a_syncer_with_an_unready_pod_is_not_asked_and_its_answer_dropped(before: list[Answer]) -> None:
    scene = Scene([*before, AWAY])
    for _ in before:
        scene.heard()
    scene.ready = 0
    assert scene.heard() == NOT_READY
    scene.ready = 1
    assert scene.heard() == AWAY


def test_states_of_learners_take_room_which_a_job_that_is_away_frees() -> None:
    learners = tuple(LearnerReport(id=f"eu/slow/{index}", state="Training") for index in range(60))
    view = SyncerStatusView(job="demo", epoch=1, phase="Training", learners=learners)
    assert list(Scene([view]).all_heard()) == [view]
    scene = Scene([view, view, AWAY])
    scene.room.hold("train", "another job", 1)
    first, _, _ = scene.all_heard()
    assert first == SyncerAway("namespace train has too many learners for the operator to keep their states")
    scene.room.hold("train", "another job", 0)
    scene.answers = [view, *[AWAY] * AWAY_AFTER_QUESTIONS]
    scene.memory.sessions_told = Sessions.of(view)
    assert list(scene.all_heard()) == [view] * AWAY_AFTER_QUESTIONS + [AWAY]
    assert scene.room.hold("train", "another job", 60)
    assert scene.memory.sessions_told is None
