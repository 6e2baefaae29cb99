"""What a learner trains on: a task with its examples, its own shard of them, and the part held out for evaluation.

Positions are counted in sequences taken, so a restarted learner continues exactly where its checkpoint or the syncer
says it was.
"""

from diloco.learner.data.holdout import Holdout
from diloco.learner.data.opening import LearnerData, batch_size_of, open_data, open_source, open_task
from diloco.learner.data.sampler import Shard, ShardSampler
from diloco.learner.data.source import DataError, DataStoppedError, DataUnavailableError, TokenSource
from diloco.learner.data.task import JobTask, Task
from diloco.learner.data.text import ByteText
from diloco.learner.data.token_file_maker import Progress, at_most_every, make_token_file
from diloco.learner.data.tokenfile import TokenFile, TokenFileInfo, open_token_file
from diloco.learner.data.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer

__all__ = [
    "ByteText",
    "ByteTokenizer",
    "DataError",
    "DataStoppedError",
    "DataUnavailableError",
    "Holdout",
    "JobTask",
    "LearnerData",
    "Progress",
    "Shard",
    "ShardSampler",
    "Task",
    "TokenFile",
    "TokenFileInfo",
    "TokenSource",
    "Tokenizer",
    "at_most_every",
    "batch_size_of",
    "make_token_file",
    "open_data",
    "open_source",
    "open_task",
    "open_token_file",
    "open_tokenizer",
]
