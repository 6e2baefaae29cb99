"""What a user writes: the ``DiLoCoJob`` manifest as typed, checked models.

This package is the one definition of every option. The command line, the custom resource's schema, the reference page
and the engine all read it. It must not know torch, gRPC, Kubernetes clients or processes.
"""

from diloco.spec.errors import SpecError
from diloco.spec.job import API_VERSION, KIND, DiLoCoJob, JobSpec, Metadata
from diloco.spec.load import load_job, parse_job

__all__ = ["API_VERSION", "KIND", "DiLoCoJob", "JobSpec", "Metadata", "SpecError", "load_job", "parse_job"]
