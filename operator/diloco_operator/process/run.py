"""Runs the operator: its connections, its pages, and kopf, which watches jobs."""

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import kopf

from diloco.runtime.process.heartbeat import Heartbeat
from diloco_operator import labels
from diloco_operator.api_server.api import Api
from diloco_operator.api_server.connection import Connection
from diloco_operator.api_server.requests import RequestHooks
from diloco_operator.jobs.handlers import registry
from diloco_operator.jobs.job_metrics import JobMetrics
from diloco_operator.jobs.observe.syncer import SyncerClient, new_session
from diloco_operator.leases.lease import Clocks, Lease
from diloco_operator.options import OperatorOptions
from diloco_operator.process.health import Health
from diloco_operator.process.metrics import Gauges, Metrics
from diloco_operator.process.operator import Operator, utc_now

_log = logging.getLogger(__name__)


async def operate(
    options: OperatorOptions, connection: Connection, identity: str, fence: Callable[[str], NoReturn]
) -> None:
    """Run the operator until SIGTERM or SIGINT.

    Args:
        options: the operator's settings.
        connection: the API server.
        identity: of this process, never used by another one that runs.
        fence: called with a reason when the lease is lost; ends the process at once.

    Raises:
        BadAddressError: the health address cannot be listened at.
    """
    metrics, heartbeat = Metrics(), Heartbeat()
    health = Health(metrics.registry, heartbeat)
    async with (
        health.served(options.health_address) as port,
        connection.open() as client,
        new_session() as session,
    ):
        _log.info("%s: healthz, readyz and metrics on port %d; cluster of %s", identity, port, connection.described)
        answered = partial(metrics.answered, "home")
        lease = Lease(
            Api(client, labels.FIELD_MANAGER, RequestHooks(answered)),
            options.operator_namespace,
            options.lease_name,
            identity,
            Clocks(utc_now, time.monotonic),
        )
        api = Api(client, labels.FIELD_MANAGER, RequestHooks(answered, lease.check))
        operator = Operator(options, connection, api, lease, fence, metrics, SyncerClient(session), heartbeat)
        health.show(operator)
        metrics.show(
            Gauges(
                queue_depth=lambda: operator.workers.depth,
                jobs=operator.jobs.phases,
                watch_ages=operator.ages,
                lease_held=lambda: lease.held,
                loop_lag_seconds=lambda: heartbeat.lag_seconds,
            )
        )
        metrics.registry.register(JobMetrics(operator.seen))
        await kopf.operator(
            registry=registry,
            memo=kopf.Memo(operator=operator),  # kopf copies a memo for each job, but not what is in it
            standalone=True,
            clusterwide=not options.namespaces,
            namespaces=options.namespaces,
            stop_flag=operator.ended,
        )
