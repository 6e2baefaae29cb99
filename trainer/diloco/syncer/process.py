"""Runs a syncer process, from start to exit code: opens the directory, starts the servers, and stops them in order.

Other modules only call ``run_syncer``.
"""

import asyncio
import contextlib
import logging
import os
from dataclasses import replace
from functools import partial

from diloco.core.engine.snapshot import SnapshotError
from diloco.core.fragments import LayoutError
from diloco.model import ModelError
from diloco.runtime.addresses import AddressError, format_address, parse_address
from diloco.runtime.disk_rate import longest_write_seconds, newest_bytes
from diloco.runtime.files import UnusableFileError, write_json_atomically
from diloco.runtime.http import HttpServer, HttpServerError, Response, Route
from diloco.runtime.process.exits import EXIT_BAD_INPUT, EXIT_UNEXPECTED, STOP_SIGNALS
from diloco.runtime.process.heartbeat import Heartbeat
from diloco.runtime.process.loading import STALLED_AFTER_SECONDS, Loading
from diloco.syncer.disk.directory import SyncerDirectory
from diloco.syncer.errors import SyncerError
from diloco.syncer.options import SyncerOptions
from diloco.syncer.peers.link_terms import limits_of
from diloco.syncer.prepare import StartState, prepare, with_first_checkpoint
from diloco.syncer.reporting.pages import on_loop, page_for_people, routes
from diloco.syncer.syncer import Syncer
from diloco.syncer.tracking.trackers import check_packages
from diloco.wire.server.server import ListenError, SyncServer
from diloco.wire.tls.tls import TlsFileError

_log = logging.getLogger(__name__)

_STOP_SECONDS = 2.0
"""Time for calls under way to end when the process stops."""
_CHECKPOINT_BYTES = 12
"""Most for each parameter in a checkpoint."""
_USERS_MISTAKES = (AddressError, HttpServerError, LayoutError, ListenError, ModelError, TlsFileError, UnusableFileError)


def run_syncer(options: SyncerOptions) -> int:
    """Run a syncer until it is stopped or, with ``exit_when_finished``, its job is over. Returns the exit code.

    An error that a user can fix is one line in the log.
    """
    try:
        loading = Loading()
        pages = loading.pages()
        pages["/page"] = partial(_again, pages["/status"])
        # Started before anything that may take long, so that a probe sees that the process is loading.
        with HttpServer(options.http, pages) as http, _directory(options, loading) as directory:
            check_packages(options.job.spec.training.tracking)
            loading.switch_to("creating the model or reading the newest checkpoint or a backup")
            start_state = prepare(options.job, directory.checkpoints)
            if start_state.training:
                directory.training(start_state.training)
            epoch = directory.begin_epoch(start_state.epoch)
            if not start_state.checkpoint:
                longest = longest_write_seconds(_CHECKPOINT_BYTES * start_state.layout.numel, STALLED_AFTER_SECONDS)
                loading.switch_to("writing the first checkpoint", longest)
                start_state = with_first_checkpoint(options.job, directory, start_state, epoch)
            return asyncio.run(_serve(options, directory, start_state, epoch, http))
    except SyncerError as error:
        _log.error("%s", error)
        return error.exit_code
    except (*_USERS_MISTAKES, SnapshotError) as error:
        _log.error("%s", error)
        return EXIT_BAD_INPUT
    except OSError as error:
        _log.error("%s: cannot be used (%s)", options.directory, error)
        return EXIT_UNEXPECTED


def _again(page: Route) -> Response:
    """The page, which a browser asks for again."""
    return replace(page(), headers=(("Refresh", "2"),))


def _directory(options: SyncerOptions, loading: Loading) -> SyncerDirectory:
    def waiting() -> None:
        loading.switch_to("waiting for another syncer that uses the directory")

    # The other one may write its last checkpoint.
    patience = longest_write_seconds(newest_bytes(options.directory / "checkpoints"), options.lock_patience_seconds)
    return SyncerDirectory(options.directory, patience, waiting)


async def _serve(
    options: SyncerOptions, directory: SyncerDirectory, state: StartState, epoch: int, http: HttpServer
) -> int:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop.set)  # until the loop is closed
    syncer = Syncer(options, directory, state, epoch)
    heartbeat = Heartbeat()
    beating = asyncio.create_task(heartbeat.run())
    try:
        status = partial(on_loop, loop, syncer.status)
        pages = routes(syncer.metrics, heartbeat, status, lambda: syncer.serving, options.directory)
        http.serve(pages | page_for_people(status, options.page))
        return await _run_until_over(options, directory, syncer, http, stop)
    finally:
        beating.cancel()
        syncer.close()


async def _run_until_over(
    options: SyncerOptions, directory: SyncerDirectory, syncer: Syncer, http: HttpServer, stop: asyncio.Event
) -> int:
    limit_of = limits_of(syncer.regions, syncer.loads.loads)
    server = SyncServer(syncer.service, options.server(limit_of), syncer.traffic)
    port = await server.start()
    try:
        address = format_address(parse_address(options.listen)[0], port)
        syncer.start()
        endpoint = {"sync": address, "http": http.address, "pid": os.getpid(), "epoch": syncer.epoch}
        try:
            write_json_atomically(directory.endpoint, endpoint)
        except OSError as error:
            # Not fatal: those that set the addresses know them.
            _log.warning("cannot write %s: %s", directory.endpoint, error.strerror or error)
        _log.info("serving job %s at %s, HTTP at %s, epoch %s", syncer.job, address, http.address, syncer.epoch)
        return await syncer.until_over(stop)
    finally:
        syncer.stop_serving()
        with contextlib.suppress(OSError):
            directory.endpoint.unlink()
        await server.stop(_STOP_SECONDS)
