"""`make kind-demo`: the operator, a job of four learners and a lost pod, on a real cluster of this machine.

Brings up the test bed's engine, cluster and images, installs the chart, applies examples/two-regions, deletes a
learner's pod on the way, and shows what came of it. The cluster stays; it says how to look around and how to take it
down.
"""

import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from rich.console import Console
from rich.table import Table

from diloco.cli.jobs.top import NewLines, follow
from diloco.cli.live.cluster_access import ApiServer, ClusterError, connect
from diloco.cli.live.cluster_jobs import Jobs
from diloco.cli.live.frames import Frame, JobSource, now
from diloco.core.account.time_class import TimeClass
from diloco.local.view.time_classes import shares_of
from diloco.local.view.units import count_text, loss_text, percent_text
from diloco.runtime.process.exits import EXIT_OK
from diloco.spec.status.job import JobStatus
from diloco.spec.status.syncer import SyncerStatus
from testbed.kind import bed, chart
from testbed.kind.bed import Bed
from testbed.kind.commands import CommandFailedError, Unavailable, run
from testbed.kind.guard import NotOursError

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CLUSTER: Final = "diloco-demo"
NAMESPACE: Final = "demo"
RELEASE: Final = chart.Release("diloco-operator", "diloco-system")
JOB_FILE: Final = "examples/two-regions/job.yaml"
JOB: Final = "two-regions"
IMAGE_PYTHON: Final = "/opt/diloco/bin/python3"
LOST_POD: Final = "two-regions--us-west-old-0"
LOST_AT_PERCENT: Final = 25
OUTPUT: Final = REPOSITORY / "build" / "kind-demo"
_EXIT_UNAVAILABLE: Final = 3


def main() -> int:
    """Run the demo; 3 where this machine can have no clusters, 4 where the job failed."""
    try:
        return demo(Console(soft_wrap=True, highlight=False, markup=False))
    except Unavailable as why:
        sys.stderr.write(f"kind-demo: no clusters: {why}\n")
        return _EXIT_UNAVAILABLE
    except (CommandFailedError, NotOursError, ClusterError) as error:
        sys.stderr.write(f"kind-demo: {error}\n")
        return 1


def demo(console: Console) -> int:
    """From nothing to a trained model; gives the exit code."""
    up = bed.up(CLUSTER, kept=True)
    images = up.images()
    console.print("helm upgrade --install diloco-operator charts/diloco-operator --namespace diloco-system")
    chart.install(up, images, RELEASE)
    # Of an earlier demo; its job's volume goes with it.
    up.cluster.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", timeout_seconds=300)
    chart.make_namespace(up.cluster, NAMESPACE)
    server = connect(up.cluster.kubeconfig, None, os.environ)
    job_file = job_for(images.trainer, console)
    console.print(f"kubectl apply --namespace {NAMESPACE} --filename {job_file.relative_to(REPOSITORY)}")
    kubectl(up, "apply", "--filename", str(job_file))
    console.print(f"kubectl diloco top {JOB} --namespace {NAMESPACE}")
    watched = Watched(up, server, console)
    code = follow(watched, NewLines(console), rows=None, once=False, wait=watched.between_looks)
    show_result(console, watched.status, watched.account)
    if code == EXIT_OK:
        tell_how_to_fetch(console, watched.status, images.trainer)
    tell_how_to_look(console, up)
    return code


def job_for(image: str, console: Console) -> Path:
    """The example, or where the image's torch lacks its optimizer, a copy that leaves the optimizer to the default."""
    asked = "import torch; print(hasattr(torch.optim, 'Muon'), torch.__version__)"
    told = run("docker", "run", "--rm", "--entrypoint", IMAGE_PYTHON, image, "-c", asked, timeout_seconds=180)
    has_muon, version = told.split()
    if has_muon == "True":
        return REPOSITORY / JOB_FILE
    console.print(f"The image's torch is {version}; Muon needs 2.9. The job trains with AdamW instead.")
    job = without_optimizer(yaml.safe_load((REPOSITORY / JOB_FILE).read_text(encoding="utf-8")))
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    return path


def without_optimizer(job: Mapping[str, Any]) -> dict[str, Any]:
    """The job with the default inner optimizer. Pure."""
    training = {key: value for key, value in job["spec"]["training"].items() if key != "optimizer"}
    return {**job, "spec": {**job["spec"], "training": training}}


@dataclass
class Watched:
    """The job, of whose learners one loses its pod on the way."""

    bed: Bed
    server: ApiServer
    console: Console
    status: JobStatus = field(default_factory=JobStatus)
    account: SyncerStatus | None = None
    """The syncer's own, as last heard: it is gone when the job is over."""
    pod_is_deleted: bool = False

    def __post_init__(self) -> None:
        self._source = JobSource(Jobs(self.server), NAMESPACE, JOB, now)

    def read(self, rows: int | None) -> Frame:
        """The frame of ``diloco top``, remembered."""
        frame = self._source.read(rows)
        self.status = JobStatus.model_validate(frame.document["status"])
        if told := frame.document["syncer"]:
            self.account = SyncerStatus.model_validate(told)
        return frame

    def between_looks(self) -> None:
        """Wait as ``diloco top`` does; once the job is well under way, delete a pod."""
        progress = self.status.progress
        far_enough = progress is not None and 100 * progress.tokens >= LOST_AT_PERCENT * progress.budget_tokens
        if far_enough and not self.pod_is_deleted:
            self.pod_is_deleted = True
            self.console.print(f"kubectl delete pod {LOST_POD} --namespace {NAMESPACE}")
            kubectl(self.bed, "delete", "pod", LOST_POD, "--wait=false")
        time.sleep(2.0)


def kubectl(up: Bed, *arguments: str) -> str:
    """What kubectl says, in the demo's namespace."""
    return up.cluster.kubectl("--namespace", NAMESPACE, *arguments, timeout_seconds=180)


def show_result(console: Console, status: JobStatus, account: SyncerStatus | None) -> None:
    """What each learner did and what came of it."""
    progress, restarts = status.progress, {each.learner: each.count for each in status.restarts}
    if account is not None:
        table = Table(box=None, pad_edge=False, header_style="dim")
        table.add_column("learner")
        for name in ("steps", "tokens", "merged", "waiting", "restarts"):
            table.add_column(name, justify="right")
        for one in account.learners:
            merged = percent_text(one.merged_tokens / one.tokens if one.tokens else None)
            waiting, again = (
                percent_text(shares_of(one.time_seconds).get(TimeClass.WAITING)),
                restarts.get(one.id, one.restarts),
            )
            table.add_row(one.id, str(one.steps), count_text(one.tokens), merged, waiting, str(again))
        console.print()
        console.print(table)
    if progress is not None:
        began = account.evaluations[0].loss if account is not None and account.evaluations else None
        console.print(f"\nevaluation loss  {loss_text(began)} at the start, {progress.loss or '-'} at the end")
        console.print(f"tokens merged    {count_text(progress.tokens)} in {progress.step} merges")
        console.print(f"goodput          {progress.goodput or '-'}")


def tell_how_to_fetch(console: Console, status: JobStatus, image: str) -> None:
    """The commands that copy the model out, with a pod's manifest written for them."""
    model = status.model
    if model is None:
        return
    pod = yaml.safe_load((REPOSITORY / "examples/kubernetes/model.yaml").read_text(encoding="utf-8"))
    name = f"{JOB}-model"
    OUTPUT.mkdir(parents=True, exist_ok=True)
    path = OUTPUT / "model.yaml"
    path.write_text(yaml.safe_dump(fetching_pod(pod, name, image, model.persistent_volume_claim)), encoding="utf-8")
    console.print(
        f"model            {model.path} on PersistentVolumeClaim {model.persistent_volume_claim}; copy it out:"
    )
    console.print(f"  kubectl --namespace {NAMESPACE} apply --filename {path.relative_to(REPOSITORY)}")
    console.print(f"  kubectl --namespace {NAMESPACE} wait --for=condition=Ready pod/{name}")
    console.print(f"  kubectl --namespace {NAMESPACE} cp {name}:/model/{model.path} {Path(model.path).name}")


def fetching_pod(example: Mapping[str, Any], name: str, image: str, claim: str) -> dict[str, Any]:
    """The example's pod, for another job's volume. Pure."""
    spec = example["spec"]
    containers = [{**container, "image": image} for container in spec["containers"]]
    volumes = [{**volume, "persistentVolumeClaim": {"claimName": claim}} for volume in spec["volumes"]]
    return {**example, "metadata": {"name": name}, "spec": {**spec, "containers": containers, "volumes": volumes}}


def tell_how_to_look(console: Console, up: Bed) -> None:
    """How to go on, and how to take all of it down."""
    programs = f"{REPOSITORY / '.venv/bin'}:{up.path()}"
    console.print("\nThe cluster stays. To look around:")
    console.print(f"  export KUBECONFIG={up.cluster.kubeconfig} PATH={programs}:$PATH")
    console.print(f"  kubectl --namespace {NAMESPACE} get dlj,pods")
    console.print(f"  kubectl diloco status {JOB} --namespace {NAMESPACE}")
    console.print("To take it down:\n  make kind-down")


if __name__ == "__main__":
    sys.exit(main())
