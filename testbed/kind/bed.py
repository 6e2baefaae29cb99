"""The test bed as a whole: brings up engine, tools, node image, cluster and images, and takes them down."""

import os
import sys
from dataclasses import astuple, dataclass
from pathlib import Path

from testbed.api_server.server import why_there_is_none
from testbed.kind import clusters, engine, go_programs, guard, node_image, project_images, tools
from testbed.kind.cache import Cache
from testbed.kind.clusters import Cluster
from testbed.kind.commands import CommandFailedError
from testbed.kind.node_image import NodeImage
from testbed.kind.project_images import Images
from testbed.kind.tools import Tools

UNAVAILABLE = "DILOCO_CLUSTERS_UNAVAILABLE"
"""Environment variable that tells tests why there are no clusters."""


@dataclass(frozen=True)
class Bed:
    """A cluster that is up and what goes with it."""

    cache: Cache
    tools: Tools
    node_image: NodeImage
    cluster: Cluster

    def path(self) -> str:
        """For a shell's PATH: where its tools are."""
        return ":".join(sorted({str(tool.parent) for tool in (*astuple(self.tools), self.cluster.kubectl_path)}))

    @property
    def saved_images(self) -> Path:
        """A folder for who has the lock of images."""
        return self.cache.folder("saved-images")

    def images(self) -> Images:
        """The project's images as the checkout is now, built and given to the cluster's nodes."""
        # Apart from the bed's own: a cluster can be used while images for it are built.
        with self.cache.lock(project_images.LOCK):
            images = project_images.build()
            project_images.load(self.cluster, images, self.saved_images)
        return images


def up(name: str = clusters.DEFAULT_NAME, *, workers: int = 1, kept: bool = False) -> Bed:
    """Bring up what is missing: takes minutes the first time, half a minute later on, a second if everything exists.

    Raises:
        Unavailable: This machine cannot have clusters, and why.
        NotOursError: A cluster of this name was not made here.
    """
    cache = Cache.of_user()
    with cache.lock():
        docker = engine.ensure(cache)
        found = tools.ensure(cache)
        image = node_image.ensure(cache, docker)
        cluster = clusters.create(cache, found, image, name, workers=workers, kept=kept)
    return Bed(cache, found, image, cluster)


def programs() -> None:
    """Build what tests without a cluster want and skip without, if it is not there: helm, and an API server.

    Raises:
        Unavailable: One of them cannot be built or found.
    """
    cache = Cache.of_user()
    tools.helm(cache)
    if why_there_is_none() is not None:
        go_programs.build(cache, go_programs.API_SERVER)


def build() -> None:
    """Build all that clusters are made of, what tests want first at first.

    Raises:
        Unavailable: This machine cannot have clusters, and why.
    """
    programs()
    cache = Cache.of_user()
    with cache.lock():
        docker = engine.ensure(cache)
        tools.ensure(cache)
        node_image.ensure(cache, docker)
    with cache.lock(project_images.LOCK):
        project_images.build()


def prepare(name: str, workers: int) -> None:
    """Make a cluster that has the images, and pause it until it is brought up. One that is there stays as it is.

    Raises:
        Unavailable: This machine cannot have clusters, and why.
    """
    record = Cache.of_user().state.clusters.get(name)
    if record is None or not record.complete:
        up(name, workers=workers).images()
        clusters.pause(name)


def attach(name: str = clusters.DEFAULT_NAME) -> Bed:
    """The bed whose cluster is up.

    Raises:
        NotOursError: It is not up.
        Unavailable: Nor could it be.
    """
    guard.check_ours(Cache.of_user(), name)
    return up(name)


def down(name: str | None = None) -> None:
    """Delete one of the test bed's clusters, or all that are not in use, and stop the engine if it was started here."""
    cache = Cache.of_user()
    with cache.lock():
        names = [each for each in cache.state.clusters if not _is_spared(cache, each)] if name is None else [name]
        if names:
            engine.ensure(cache)
            found = tools.ensure(cache)
            for each in names:
                clusters.delete(cache, found, each)
        engine.stop(cache)


def _is_spared(cache: Cache, name: str) -> bool:
    used = cache.is_used(name)
    if used:
        sys.stderr.write(f"kind: {name} is in use by tests and stays\n")
    return used


def end_of_use(name: str) -> None:
    """Take a cluster down after tests, unless it was brought up by hand or is in use."""
    cache = Cache.of_user()
    record = cache.state.clusters.get(name)
    if os.environ.get("KEEP_CLUSTERS") == "1" or (record is not None and record.kept) or cache.is_used(name):
        return
    try:
        if record is not None:
            down(name)
        else:
            with cache.lock():
                engine.stop(cache)
    except CommandFailedError as error:
        raise SystemExit(f"kind: {name} could not be taken down: {error}") from None
