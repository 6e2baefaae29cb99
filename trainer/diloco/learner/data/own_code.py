"""Calls code of the user's own that the manifest names. Whatever it raises is one line that says where."""

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from diloco.learner.data.source import DataError, DataUnavailableError
from diloco.model.entrypoint import one_line
from diloco.runtime.files import is_machine_error

_OF_A_DEVICE: Final = (torch.OutOfMemoryError, getattr(torch, "AcceleratorError", torch.OutOfMemoryError))
"""Errors that are no mistake of the code's. torch 2.8 and later have the second."""


@dataclass(frozen=True, slots=True)
class OwnCode:
    """What an entrypoint of the manifest has made."""

    field: str
    """In the manifest, for messages."""
    entrypoint: str

    def mistake(self, text: str) -> DataError:
        """The error to raise about it."""
        return DataError(f"{self.field}: {self.entrypoint}: {text}")

    def call(self, what: str, function: Callable[..., Any], /, *arguments: object, **named: object) -> Any:
        """The function's result; ``what`` names it in messages.

        Raises:
            DataError: it raised, unless that is an error of the device.
        """
        try:
            return function(*arguments, **named)
        except (DataError, *_OF_A_DEVICE):
            raise
        except (Exception, SystemExit) as error:  # a user's code may raise anything: show it to the user
            places = traceback.extract_tb(error.__traceback__)[1:2]  # after this one: in the code
            where = "".join(f", line {place.lineno} of {Path(place.filename).name}" for place in places)
            told = self.mistake(f"{what} raised {one_line(error)}{where}")
            if isinstance(error, OSError) and is_machine_error(error):
                raise DataUnavailableError(str(told)) from error
            raise told from error
