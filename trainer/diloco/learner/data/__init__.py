"""What a learner trains on: a task with its examples, those of them that it is dealt, and the part held out."""

from diloco.learner.data.holdout import Holdout
from diloco.learner.data.opening import LearnerData, batch_size_of, open_data, open_source, open_task
from diloco.learner.data.sampler import DealtSampler, Sampling
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
    "DealtSampler",
    "Holdout",
    "JobTask",
    "LearnerData",
    "Progress",
    "Sampling",
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
