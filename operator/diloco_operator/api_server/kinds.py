"""The kinds of objects that the operator uses, and their paths at an API server.

A table rather than discovery, because the RBAC rules are written from it.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

Object = dict[str, Any]
"""An object, as the JSON that a server sends."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    name: str
    """``StatefulSet``."""
    plural: str
    group: str
    """Empty: the core group."""
    version: str

    @property
    def api_version(self) -> str:
        """As in an object's ``apiVersion``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        """As in RBAC: ``statefulsets.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """The URL's path; `namespace` None: objects of all namespaces."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        parts += ["namespaces", namespace] if namespace is not None else []
        parts += [part for part in (self.plural, name, subresource) if part is not None]
        return "/" + "/".join(quote(part, safe="") for part in parts)


JOB: Final = Kind("DiLoCoJob", "dilocojobs", "diloco.dev", "v1alpha1")
STATEFUL_SET: Final = Kind("StatefulSet", "statefulsets", "apps", "v1")
DEPLOYMENT: Final = Kind("Deployment", "deployments", "apps", "v1")
SERVICE: Final = Kind("Service", "services", "", "v1")
CONFIG_MAP: Final = Kind("ConfigMap", "configmaps", "", "v1")
SECRET: Final = Kind("Secret", "secrets", "", "v1")
CLAIM: Final = Kind("PersistentVolumeClaim", "persistentvolumeclaims", "", "v1")
NETWORK_POLICY: Final = Kind("NetworkPolicy", "networkpolicies", "networking.k8s.io", "v1")
POD: Final = Kind("Pod", "pods", "", "v1")
EVENT: Final = Kind("Event", "events", "events.k8s.io", "v1")
CORE_EVENT: Final = Kind("Event", "events", "", "v1")
SERVICE_ACCOUNT: Final = Kind("ServiceAccount", "serviceaccounts", "", "v1")
REVIEW: Final = Kind("SelfSubjectAccessReview", "selfsubjectaccessreviews", "authorization.k8s.io", "v1")
"""Not in a namespace: everyone may ask about what is allowed to oneself."""
NAMESPACE: Final = Kind("Namespace", "namespaces", "", "v1")
LEASE: Final = Kind("Lease", "leases", "coordination.k8s.io", "v1")
ROLE_BINDING: Final = Kind("RoleBinding", "rolebindings", "rbac.authorization.k8s.io", "v1")
CLUSTER_ROLE_BINDING: Final = Kind("ClusterRoleBinding", "clusterrolebindings", "rbac.authorization.k8s.io", "v1")
WORKLOAD: Final = Kind("Workload", "workloads", "kueue.x-k8s.io", "v1beta2")
RESOURCE_FLAVOR: Final = Kind("ResourceFlavor", "resourceflavors", WORKLOAD.group, WORKLOAD.version)
QUEUE_PRIORITY: Final = Kind("WorkloadPriorityClass", "workloadpriorityclasses", WORKLOAD.group, WORKLOAD.version)
"""These are Kueue's. The last two are in no namespace."""

CHILDREN: Final = (
    STATEFUL_SET,
    DEPLOYMENT,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    CLAIM,
    NETWORK_POLICY,
)
"""The kinds of a job's children, all of which are watched. With Kueue, Workloads are too."""

REMOTE_CHILDREN: Final = (
    STATEFUL_SET,
    SERVICE,
    CONFIG_MAP,
    SECRET,
    NETWORK_POLICY,
)
"""The kinds of what a job has in another cluster, all of which are watched there."""

_BY_NAME: Final = {kind.name: kind for kind in (*CHILDREN, WORKLOAD)}


def child_kind(name: str) -> Kind:
    """The kind of a child.

    Raises:
        LookupError: there are no children of that kind.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        raise LookupError(f"{name}: not one of the kinds that jobs are made of: {', '.join(_BY_NAME)}") from None
