"""Two scripted learners of a real syncer process, over the real wire."""

import threading

from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess

LEARNERS = ("here/cpu/0", "here/cpu/1")


def learner(job: SmallJob, syncer: SyncerProcess, name: str = LEARNERS[0], instance: str = "") -> ScriptedLearner:
    return ScriptedLearner(syncer.address, job, name, instance)


def train_to_the_end(job: SmallJob, syncer: SyncerProcess) -> None:
    """Both learners train until the job is over, and leave."""

    def run(name: str) -> None:
        with learner(job, syncer, name) as one:
            one.begin().train(lambda _: False)
            one.leave()

    threads = [threading.Thread(target=run, args=(name,)) for name in LEARNERS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_SECONDS)
        assert not thread.is_alive()
