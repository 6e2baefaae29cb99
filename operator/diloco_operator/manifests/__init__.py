"""Builders of the objects of a job: pure functions to plain dicts, one file a subject.

They write fields as the API server gives them back (canonical quantities, nothing empty), so that a comparison finds a
difference only where there is one. They must not know what is in the cluster, the time, or whether anything should run.
"""

from diloco_operator.manifests.children import children
from diloco_operator.manifests.errors import InvalidSpecError, ManifestError, NoImageError
from diloco_operator.manifests.inputs import Certificates, Images, Manifest, ObservedImages, Scale, choose_images

__all__ = [
    "Certificates",
    "Images",
    "InvalidSpecError",
    "Manifest",
    "ManifestError",
    "NoImageError",
    "ObservedImages",
    "Scale",
    "children",
    "choose_images",
]
