"""What a learner trains on: a task with its examples, those of them that it is dealt, and the part held out."""

from diloco.learner.data.source import DataError, DataUnavailableError, TokenSource
from diloco.learner.data.task import Task
from diloco.learner.data.token_file_maker import make_token_file
from diloco.learner.data.tokenfile import TokenFile, open_token_file
from diloco.learner.data.tokenizer import Tokenizer

__all__ = [
    "DataError",
    "DataUnavailableError",
    "Task",
    "TokenFile",
    "TokenSource",
    "Tokenizer",
    "make_token_file",
    "open_token_file",
]
