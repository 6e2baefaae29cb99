"""What a manifest may say and this version of the operator cannot do. Pure."""

from diloco.spec import JobSpec
from diloco_operator.decide.causes.pools import Cause
from diloco_operator.decide.reasons import Reason


def unsupported(spec: JobSpec) -> Cause | None:
    """The first such thing."""
    for index, region in enumerate(spec.regions):
        if region.cluster is not None:
            text = f"spec.regions[{index}].cluster: other clusters are not supported yet; leave it out"
            return Cause(Reason.REMOTE_CLUSTER_UNSUPPORTED, text)
    return None
