"""Two scripted learners of a real syncer process, over the real wire."""

import threading
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path

from diloco.tape.segments import find_tapes
from tests.support.scripted_learner import WAIT_SECONDS, ScriptedLearner
from tests.support.syncer_process import SmallJob, SyncerProcess

LEARNERS = ("here/cpu/0", "here/cpu/1")


def learner(
    job: SmallJob, syncer: SyncerProcess, name: str = LEARNERS[0], instance: str = "", *, updates: bool = False
) -> ScriptedLearner:
    made = ScriptedLearner(syncer.address, job, name, instance)
    made.says_what_it_holds = updates
    return made


def segments(tape: Path, epoch: int) -> int:
    """The number of segments that an epoch's tape has been cut into."""
    return sum(len(files.segments) for files in find_tapes(tape) if files.epoch == epoch)


def train_to_the_end(job: SmallJob, syncer: SyncerProcess, updated: str = "") -> list[ScriptedLearner]:
    """Both learners, of which ``updated`` takes updates, train until the job is over, or one fails, and leave."""
    failed = threading.Event()

    def run(name: str) -> ScriptedLearner:
        with learner(job, syncer, name, updates=name == updated) as one:
            one.begin().train(lambda _: failed.is_set())
            one.leave()
            return one

    with ThreadPoolExecutor(len(LEARNERS)) as pool:
        both = [pool.submit(run, name) for name in LEARNERS]
        wait(both, WAIT_SECONDS, return_when=FIRST_EXCEPTION)
        failed.set()
        return [one.result() for one in both]
