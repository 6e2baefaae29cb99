"""The ``DiLoCoJob`` manifest as typed, validated models, which define every option.

The command line, the custom resource's schema, the reference page and the engine all read these models. They import
neither torch nor numpy, so that ``diloco validate`` and the operator start quickly.
"""

from diloco.spec.errors import SpecError
from diloco.spec.job import DiLoCoJob, JobSpec
from diloco.spec.reading.load import load_job, parse_job

__all__ = ["DiLoCoJob", "JobSpec", "SpecError", "load_job", "parse_job"]
