from typing import Any

import pytest

from diloco.spec.reading.load import job_from
from diloco.spec.warnings import warnings
from tests.support.job_manifests import changed


def told(limits: dict[str, Any], **pool: Any) -> list[str]:
    resources = {"limits": {"memory": "16Gi", **limits}}
    fields = {"spec.regions.0.pools.0.resources": resources}
    fields |= {f"spec.regions.0.pools.0.{name}": value for name, value in pool.items()}
    return [str(one) for one in warnings(job_from(changed(fields)).spec)]


@pytest.mark.parametrize(
    "name",
    [
        *("nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared", "aws.amazon.com/neuron", "aws.amazon.com/neuroncore"),
        *("google.com/tpu", "habana.ai/gaudi", "gpu.intel.com/xe", "huawei.com/Ascend910"),
    ],
)
def test_several_accelerators_that_do_not_count_are_told(name: str) -> None:
    (line,) = told({name: "4"})
    assert line.startswith(f"regions[0].pools[0].resources.limits: {name}: 4 does not count as accelerators")
    assert line.endswith("set processesPerNode")
    assert told({name: "1"}) == told({name: "4"}, processesPerNode=1) == []


def test_other_resources_are_no_accelerators() -> None:
    assert told({"nvidia.com/gpu": "2", "rdma/hca_shared_devices_a": "2", "hugepages-2Mi": "1Gi"}) == []
