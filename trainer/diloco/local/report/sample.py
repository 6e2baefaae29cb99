"""Text that the trained model writes, for ``sample.txt`` and the report: proof for the eye that it has learned."""

from pathlib import Path

import torch

from diloco.learner.training.sample import SampleError, SampleOptions, sample_text
from diloco.model import ModelError, load_model
from diloco.spec import JobSpec

_TOKENS = 400
_ENOUGH = 200
"""Letters. A draw that ends its document sooner gives way to the next seed's, a few times."""
_TRIES = 4


class NoSampleError(RuntimeError):
    """No sample can be had; the text is one line that says why."""


def write_text(path: Path, spec: JobSpec) -> str:
    """What the model in ``path`` writes from the start of a document.

    Raises:
        NoSampleError: the model cannot be read, is not one of text, or does not run on this machine.
    """
    longest = ""
    # One token after the other is too little work to share: more threads only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        module = load_model(path, spec.model).module
        for seed in range(_TRIES):
            options = SampleOptions(tokens=_TOKENS, seed=seed, context=spec.training.sequence_length)
            longest = max(longest, sample_text(module, "", options), key=len)
            if len(longest) >= _ENOUGH:
                break
    except (ModelError, SampleError) as error:
        raise NoSampleError(str(error)) from error
    except Exception as error:  # the model may be anybody's code
        raise NoSampleError(f"{path}: the model does not run here ({type(error).__name__}: {error})") from error
    finally:
        torch.set_num_threads(threads)
    return "".join(
        letter if letter.isprintable() or letter in "\n\t" else "\N{REPLACEMENT CHARACTER}" for letter in longest
    )
