"""The Pod Security Standard 'restricted', as rules over a pod's spec.

What https://kubernetes.io/docs/concepts/security/pod-security-standards/ lists for it, 'baseline' included, written as
a function of the spec, so that a pod can be judged without a cluster.
"""

from collections.abc import Iterator, Mapping
from typing import Any

VOLUME_KINDS = {
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
}
SECCOMP_TYPES = {"RuntimeDefault", "Localhost"}
SYSCTLS = {
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_rmem",  # this and the next from Kubernetes 1.32 on
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
    "net.ipv4.ping_group_range",
}
SELINUX_TYPES = {"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Every rule that a pod's ``spec`` breaks, with its place."""
    return [*_of_pod(pod), *(found for place, one in _containers(pod) for found in _of_container(place, one, pod))]


def _containers(pod: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for one in pod.get(kind, ()):
            yield f"{kind}[{one['name']}]", one


def _of_pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(field):
            yield f"{field} is set"
    for volume in pod.get("volumes", ()):
        kinds = set(volume) - {"name"}
        if not kinds <= VOLUME_KINDS:
            yield f"volumes[{volume['name']}] is a {', '.join(sorted(kinds))}"
    context = pod.get("securityContext", {})
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    yield from _of_context("securityContext", context)


def _of_container(place: str, container: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    context, shared = container.get("securityContext", {}), pod.get("securityContext", {})
    yield from _of_context(f"{place}.securityContext", context)
    if context.get("privileged"):
        yield f"{place} is privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{place} may escalate its privileges"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{place} does not drop ALL capabilities"
    if not set(capabilities.get("add", ())) <= {"NET_BIND_SERVICE"}:
        yield f"{place} adds capabilities"
    if context.get("runAsNonRoot", shared.get("runAsNonRoot")) is not True:
        yield f"{place} may run as root"
    seccomp = context.get("seccompProfile", shared.get("seccompProfile", {}))
    if seccomp.get("type") not in SECCOMP_TYPES:
        yield f"{place} has no seccomp profile"
    if context.get("procMount", "Default") != "Default":
        yield f"{place} has procMount {context['procMount']}"
    if any(one.get("hostPort") for one in container.get("ports", ())):
        yield f"{place} has a host port"
    hooks = [container.get(f"{kind}Probe", {}) for kind in ("liveness", "readiness", "startup")]
    hooks += container.get("lifecycle", {}).values()
    if any(hook.get(kind, {}).get("host") for hook in hooks for kind in ("httpGet", "tcpSocket")):
        yield f"{place} has a probe or hook that calls another host"


def _of_context(place: str, context: Mapping[str, Any]) -> Iterator[str]:
    if context.get("runAsUser") == 0:
        yield f"{place} runs as root"
    if context.get("windowsOptions", {}).get("hostProcess"):
        yield f"{place} is a host process"
    selinux = context.get("seLinuxOptions", {})
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{place} has SELinux options"
    if context.get("appArmorProfile", {}).get("type", "RuntimeDefault") not in SECCOMP_TYPES:
        yield f"{place} has no AppArmor profile"
