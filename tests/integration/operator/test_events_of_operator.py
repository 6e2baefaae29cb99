"""Events of a job, as kubectl shows them."""

import asyncio
import re
from datetime import UTC, datetime

from diloco_operator.api_server.api import Api
from diloco_operator.api_server.kinds import JOB
from diloco_operator.decide.plan import JobEvent
from diloco_operator.jobs.job_writes import JobWrites
from diloco_operator.jobs.jobs import Jobs
from testbed.api_server.server import ApiServer
from tests.support.operator_scene import manifest


async def test_kubectl_describes_events_in_the_order_of_their_times(
    api: Api, server: ApiServer, namespace: str
) -> None:
    job = await api.create(JOB, manifest("job") | {"metadata": {"namespace": namespace, "name": "job"}})
    writes = JobWrites(api, Jobs(), lambda: datetime.now(UTC), "operator", job)
    await writes.record(tuple(JobEvent("Normal", f"Reason{number}", "text") for number in range(10)))
    told = await asyncio.to_thread(server.kubectl, "describe", "dlj", "job", f"--namespace={namespace}")
    assert re.findall(r"Reason(\d)", told.stdout) == list("0123456789")
