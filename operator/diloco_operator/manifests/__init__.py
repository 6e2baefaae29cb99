"""Builders of a job's objects: pure functions that return plain dicts, one subject per file.

They depend neither on the state of the cluster nor on the time, nor on whether anything should run.
"""

from diloco_operator.manifests.all_children import all_children
from diloco_operator.manifests.errors import InvalidSpecError, ManifestError, NoImageError
from diloco_operator.manifests.inputs import (
    Certificates,
    Images,
    Inputs,
    Manifest,
    Placed,
    Remote,
    Remotes,
    Scale,
    choose_images,
)

__all__ = [
    "Certificates",
    "Images",
    "Inputs",
    "InvalidSpecError",
    "Manifest",
    "ManifestError",
    "NoImageError",
    "Placed",
    "Remote",
    "Remotes",
    "Scale",
    "all_children",
    "choose_images",
]
