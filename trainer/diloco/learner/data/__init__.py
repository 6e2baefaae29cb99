"""What a learner trains on: a source of tokens, the sequences of it that it is dealt, and the part held out."""

from diloco.learner.data.holdout import Holdout
from diloco.learner.data.opening import LearnerData, batch_size_of, open_data, open_source
from diloco.learner.data.sampler import Batch, DealtSampler, Sampling
from diloco.learner.data.source import DataError, DataUnavailableError, TokenSource
from diloco.learner.data.text import ByteText
from diloco.learner.data.token_file_maker import make_token_file
from diloco.learner.data.tokenfile import TokenFile, TokenFileInfo, open_token_file
from diloco.learner.data.tokenizer import ByteTokenizer, Tokenizer, open_tokenizer

__all__ = [
    "Batch",
    "ByteText",
    "ByteTokenizer",
    "DataError",
    "DataUnavailableError",
    "DealtSampler",
    "Holdout",
    "LearnerData",
    "Sampling",
    "TokenFile",
    "TokenFileInfo",
    "TokenSource",
    "Tokenizer",
    "batch_size_of",
    "make_token_file",
    "open_data",
    "open_source",
    "open_token_file",
    "open_tokenizer",
]
