"""Wrong settings of a pool's pods, and what ``diloco`` says of each."""

from typing import Any, NamedTuple

LABEL_KEY = "a key such as team or example.com/team"
LABEL_VALUE = "letters, digits, inner hyphens, underscores and dots, at most 63 characters"
IMAGE = "an image such as registry.example.com/team/trainer:1.0, at most 1024 characters"
NAME = "a name of lower-case letters, digits and inner hyphens, at most 63 characters"
QUANTITY = "a quantity such as 500m or 16Gi, at most 64 characters"
RESOURCES = "cpu, memory, ephemeral-storage, hugepages-SIZE or DOMAIN/NAME, such as nvidia.com/gpu"


class Wrong(NamedTuple):
    """A wrong value in a pool, and what is said of it."""

    pool: dict[str, Any]
    place: str
    says: str


def limits(**more: Any) -> dict[str, Any]:
    return {"resources": {"limits": more}}


def both(resource: str, request: object, limit: object) -> dict[str, Any]:
    return {"resources": {"requests": {resource: request}, "limits": {resource: limit}}}


def variable(**fields: Any) -> dict[str, Any]:
    return {"env": [{"name": "TOKEN", **fields}]}


def metadata(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"metadata": fields}}


def pod(**fields: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": fields}}


def tolerates(**fields: Any) -> dict[str, Any]:
    return pod(tolerations=[fields])


def needs_nodes(**expression: Any) -> dict[str, Any]:
    terms = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "zone", **expression}]}]}
    return pod(affinity={"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}})


def spread(**fields: Any) -> dict[str, Any]:
    least = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}
    return pod(topologySpreadConstraints=[{**least, **fields}])


def volume(**source: Any) -> dict[str, Any]:
    return pod(volumes=[{"name": "data", **source}])


def mount(**fields: Any) -> dict[str, Any]:
    return pod(containers=[{"name": "learner", "volumeMounts": [{"name": "data", "mountPath": "/data", **fields}]}])


def first(**fields: Any) -> dict[str, Any]:
    return pod(initContainers=[{"name": "fetch", "image": "fetch:1", **fields}])


SPEC = "podTemplate.spec"
TERM = f"{SPEC}.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]"
EXPRESSION = f"{TERM}.matchExpressions[0]"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
UNKNOWN = "is not a field here; did you mean"

PODS = (
    # Resources.
    Wrong(limits(memory="4GB"), "resources.limits.memory", f'"4GB" does not fit; use {QUANTITY}'),
    Wrong(limits(cpu="1O"), "resources.limits.cpu", f'"1O" does not fit; use {QUANTITY}'),
    Wrong(limits(memory="-1Gi"), "resources.limits.memory", "-1Gi is below 0; use at least 0"),
    Wrong(limits(memroy="4Gi"), "resources.limits.memroy", f"{UNKNOWN} memory?"),
    Wrong(limits(gpu=1), "resources.limits.gpu", f"is not a resource of containers; use {RESOURCES}"),
    Wrong(
        limits(**{"nvidia.com/gpu": "0.5"}),
        "resources.limits.nvidia.com/gpu",
        "0.5 is not a whole number; use one such as 1",
    ),
    Wrong(
        {"resources": {"requests": {"nvidia.com/gpu": 1}}},
        "resources.limits.nvidia.com/gpu",
        "is missing; use 1, as it is requested",
    ),
    Wrong(
        both("nvidia.com/gpu", 1, 2),
        "resources.requests.nvidia.com/gpu",
        "1 is not its limit, 2; use the same, or leave the request out",
    ),
    Wrong(
        both("memory", "8Gi", "4Gi"), "resources.requests.memory", "8Gi is above its limit, 4Gi; use at most as much"
    ),
    Wrong(both("cpu", 2, "1500m"), "resources.requests.cpu", "2 is above its limit, 1500m; use at most as much"),
    Wrong(
        {"resources": {"claims": [{"name": "gpu", "requests": "a"}]}},
        "resources.claims[0].requests",
        f"{UNKNOWN} request?",
    ),
    Wrong(
        {"resources": {"claims": [{"name": "gpu"}]}},
        "resources.claims[0].name",
        "gpu is not in podTemplate.spec.resourceClaims; add it there",
    ),
    Wrong(
        {
            "resources": {"claims": [{"name": "gpu"}]},
            **pod(
                resourceClaims=[{"name": "gpu", "resourceClaimTemplateName": "one-gpu"}],
                initContainers=[{"name": "test", "image": "test:1", "resources": {"claims": [{"name": "GPU"}]}}],
            ),
        },
        f"{SPEC}.initContainers[0].resources.claims[0].name",
        "GPU is not in podTemplate.spec.resourceClaims; use gpu",
    ),
    # Labels.
    Wrong(
        metadata(labels={"my team": "a"}),
        "podTemplate.metadata.labels.my team",
        f'"my team" does not fit; use {LABEL_KEY}',
    ),
    Wrong(
        metadata(annotations={"a/b/c": "d"}),
        "podTemplate.metadata.annotations.a/b/c",
        f'"a/b/c" does not fit; use {LABEL_KEY}',
    ),
    Wrong(
        pod(nodeSelector={"gpu type": "a"}),
        f"{SPEC}.nodeSelector.gpu type",
        f'"gpu type" does not fit; use {LABEL_KEY}',
    ),
    Wrong(
        pod(nodeSelector={"gpu": "A100 80GB"}),
        f"{SPEC}.nodeSelector.gpu",
        f'"A100 80GB" does not fit; use {LABEL_VALUE}',
    ),
    # Images and names.
    Wrong(first(image="Fetch:1"), f"{SPEC}.initContainers[0].image", f'"Fetch:1" does not fit; use {IMAGE}'),
    Wrong(
        pod(priorityClassName="High Priority"),
        f"{SPEC}.priorityClassName",
        '"High Priority" does not fit; use a name in DNS such as syncer.example.com',
    ),
    # Variables.
    Wrong(variable(val="x"), "env[0].val", f"{UNKNOWN} value?"),
    Wrong(variable(value=1), "env[0].value", "1 is not text; put it in quotes"),
    Wrong(
        {"env": [{"name": "A=B"}]}, "env[0].name", '"A=B" does not fit; use a name of printable characters other than ='
    ),
    Wrong(variable(valueFrom={"secretKeyref": {}}), "env[0].valueFrom.secretKeyref", f"{UNKNOWN} secretKeyRef?"),
    Wrong(
        variable(valueFrom={"secretKeyRef": {"name": "a"}}), "env[0].valueFrom.secretKeyRef.key", "is missing; use text"
    ),
    Wrong(
        variable(value="x", valueFrom={"fieldRef": {"fieldPath": "metadata.name"}}),
        "env[0]",
        "needs at most one of value and valueFrom; has value and valueFrom",
    ),
    Wrong(
        variable(valueFrom={}),
        "env[0].valueFrom",
        "needs exactly one of configMapKeyRef, fieldRef, fileKeyRef, resourceFieldRef and secretKeyRef; has none",
    ),
    Wrong(
        variable(valueFrom={"resourceFieldRef": {"resource": "limits.memory", "divisor": "1MB"}}),
        "env[0].valueFrom.resourceFieldRef.divisor",
        f'"1MB" does not fit; use {QUANTITY}',
    ),
    Wrong(
        pod(containers=[{"name": "learner", "envFrom": [{"configmapRef": {"name": "a"}}]}]),
        f"{SPEC}.containers[0].envFrom[0].configmapRef",
        f"{UNKNOWN} configMapRef?",
    ),
    # Tolerations.
    Wrong(
        tolerates(key="gpu", operator="exists"),
        f"{SPEC}.tolerations[0].operator",
        '"exists" is not known; use Exists, Equal, Lt or Gt',
    ),
    Wrong(
        tolerates(key="gpu", operator="Exists", value="yes"),
        f"{SPEC}.tolerations[0].value",
        "yes has no use with operator Exists; remove it or use operator Equal",
    ),
    Wrong(
        tolerates(effect="NoSchedule"),
        f"{SPEC}.tolerations[0].key",
        "is missing; use a taint's key, or operator Exists for every taint",
    ),
    Wrong(
        tolerates(key="gpu", effect="NoExecution"),
        f"{SPEC}.tolerations[0].effect",
        '"NoExecution" is not known; use NoSchedule, PreferNoSchedule or NoExecute',
    ),
    Wrong(
        tolerates(key="gpu", effect="NoSchedule", tolerationSeconds=60),
        f"{SPEC}.tolerations[0].tolerationSeconds",
        "has no use without effect NoExecute; remove it or use effect NoExecute",
    ),
    Wrong(
        tolerates(key="gpu", effect="NoExecute", tolerationSeconds="60"),
        f"{SPEC}.tolerations[0].tolerationSeconds",
        '"60" is not an integer; remove the quotes',
    ),
    # Affinity.
    Wrong(pod(affinity={"nodeAffinty": {}}), f"{SPEC}.affinity.nodeAffinty", f"{UNKNOWN} nodeAffinity?"),
    Wrong(
        needs_nodes(operator="in", values=["a"]),
        f"{EXPRESSION}.operator",
        '"in" is not known; use In, NotIn, Exists, DoesNotExist, Gt or Lt',
    ),
    Wrong(needs_nodes(operator="In"), f"{EXPRESSION}.values", "is missing; operator In needs at least one"),
    Wrong(
        needs_nodes(operator="Exists", values=["a"]),
        f"{EXPRESSION}.values",
        "has no use with operator Exists; remove it",
    ),
    Wrong(needs_nodes(operator="In", value=["a"]), f"{EXPRESSION}.value", f"{UNKNOWN} values?"),
    Wrong(
        pod(affinity={"nodeAffinity": {PREFERRED: [{"weight": 500, "preference": {}}]}}),
        f"{SPEC}.affinity.nodeAffinity.{PREFERRED}[0].weight",
        "500 is too large; use an integer from 1 to 100",
    ),
    Wrong(
        pod(affinity={"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{}]}}),
        f"{SPEC}.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologyKey",
        "is missing; use text",
    ),
    Wrong(
        pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringRuntime": []}}),
        f"{SPEC}.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringRuntime",
        f"{UNKNOWN} requiredDuringSchedulingIgnoredDuringExecution?",
    ),
    # Spread.
    Wrong(
        spread(whenUnsatisfiable="Schedule"),
        f"{SPEC}.topologySpreadConstraints[0].whenUnsatisfiable",
        '"Schedule" is not known; use DoNotSchedule or ScheduleAnyway',
    ),
    Wrong(
        spread(maxSkew=0),
        f"{SPEC}.topologySpreadConstraints[0].maxSkew",
        "0 is too small; use an integer of at least 1",
    ),
    Wrong(
        spread(whenUnsatisfiable="ScheduleAnyway", minDomains=2),
        f"{SPEC}.topologySpreadConstraints[0].minDomains",
        "has no use without whenUnsatisfiable DoNotSchedule; remove it or use DoNotSchedule",
    ),
    # Volumes.
    Wrong(volume(emptydir={}), f"{SPEC}.volumes[0].emptydir", f"{UNKNOWN} emptyDir?"),
    Wrong(
        volume(emptyDir={"sizeLimit": "10GB"}),
        f"{SPEC}.volumes[0].emptyDir.sizeLimit",
        f'"10GB" does not fit; use {QUANTITY}',
    ),
    Wrong(
        volume(emptyDir={"medium": "memory"}),
        f"{SPEC}.volumes[0].emptyDir.medium",
        '"memory" does not fit; use Memory, HugePages or HugePages-SIZE',
    ),
    Wrong(
        volume(persistentVolumeClaim={"claimName": "a", "readonly": True}),
        f"{SPEC}.volumes[0].persistentVolumeClaim.readonly",
        f"{UNKNOWN} readOnly?",
    ),
    Wrong(
        volume(secret={"secretName": "a", "defaultMode": "0400"}),
        f"{SPEC}.volumes[0].secret.defaultMode",
        '"0400" is not an integer; remove the quotes',
    ),
    Wrong(volume(name="My_Data", emptyDir={}), f"{SPEC}.volumes[0].name", f'"My_Data" does not fit; use {NAME}'),
    Wrong(
        mount(mountPath="/a:b"),
        f"{SPEC}.containers[0].volumeMounts[0].mountPath",
        '"/a:b" does not fit; use a path without a colon, such as /data',
    ),
    Wrong(mount(readonly=True), f"{SPEC}.containers[0].volumeMounts[0].readonly", f"{UNKNOWN} readOnly?"),
    # Init containers.
    Wrong(first(command="sh -c true"), f"{SPEC}.initContainers[0].command", '"sh -c true" is not a list; use a list'),
    Wrong(
        first(restartPolicy="always"),
        f"{SPEC}.initContainers[0].restartPolicy",
        '"always" is not known; use Always, Never or OnFailure',
    ),
    Wrong(
        first(ports=[{"containerPort": 70000}]),
        f"{SPEC}.initContainers[0].ports[0].containerPort",
        "70000 is too large; use an integer from 1 to 65535",
    ),
    Wrong(
        first(restartPolicy="Always", readinessProbe={"httpget": {"port": 80}}),
        f"{SPEC}.initContainers[0].readinessProbe.httpget",
        f"{UNKNOWN} httpGet?",
    ),
    Wrong(
        first(readinessProbe={"httpGet": {"port": 80}}),
        f"{SPEC}.initContainers[0].readinessProbe",
        "has no use without restartPolicy Always; remove it or use restartPolicy Always",
    ),
    Wrong(
        first(resources={"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}),
        f"{SPEC}.initContainers[0].resources.requests.memory",
        "2Gi is above its limit, 1Gi; use at most as much",
    ),
    Wrong(
        first(restartPolicy="Always", readinessProbe={"httpGet": {"port": True}}),
        f"{SPEC}.initContainers[0].readinessProbe.httpGet.port",
        "true is neither an integer nor text; use a port's number or name",
    ),
    # Names in DNS.
    Wrong(pod(dnsPolicy="None"), f"{SPEC}.dnsConfig.nameservers", "is missing; dnsPolicy None needs at least one"),
    Wrong(
        pod(resourceClaims=[{"name": "gpu"}]),
        f"{SPEC}.resourceClaims[0]",
        "needs exactly one of resourceClaimName and resourceClaimTemplateName; has none",
    ),
)
