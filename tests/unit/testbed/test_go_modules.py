"""Kubernetes is built without its repository: modules from inside the repository come from their published versions."""

from testbed.kind.go_modules import published_staging

MODULE_FILE = """\
module k8s.io/kubernetes

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/component-base => ./staging/src/k8s.io/component-base
\texample.org/other => ../other
)
"""


def test_folders_beside_it_become_versions_of_the_same_release() -> None:
    assert published_staging(MODULE_FILE, "1.36.3") == [
        "replace k8s.io/api => k8s.io/api v0.36.3",
        "replace k8s.io/component-base => k8s.io/component-base v0.36.3",
    ]
