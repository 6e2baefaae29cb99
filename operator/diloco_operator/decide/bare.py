"""A job whose spec need not be readable, at one moment: what its objects, its status and a few fields say. Pure values.

What a manifest would say of the pools is in the status, as it was when the manifest could last be read.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from typing import Final

from diloco.spec.status import JobStatus, PoolStatus
from diloco_operator import names
from diloco_operator.decide.causes.all import revocation_causes
from diloco_operator.decide.causes.cause import Cause
from diloco_operator.decide.causes.volume import START_ANEW, Volume, has_trained
from diloco_operator.decide.certificates import revoked_list
from diloco_operator.decide.clock import latest_known
from diloco_operator.decide.clusters import FINALIZER, HOME, Clusters, said_regions
from diloco_operator.decide.ending import recorded_end
from diloco_operator.decide.lost_pods import SYNCER_STOPPED, LostPodPolicy, Scene, Verdict, lost_pods, policy_of
from diloco_operator.decide.observed import ChildKey, Object, Observed, SyncerStatusView
from diloco_operator.decide.readmission import READMIT, given_up, not_ordered
from diloco_operator.decide.reasons import Reason
from diloco_operator.decide.revocation import REVOKED, not_in_force
from diloco_operator.decide.same_place import with_same_places
from diloco_operator.decide.stop_fields import StopFields, stop_fields
from diloco_operator.decide.stopping import PodsLeft, pods_left
from diloco_operator.decide.text import parsed_time
from diloco_operator.decide.workloads import STATEFUL_SET, PoolWorkload, replicas, syncer_claim, syncer_deployment
from diloco_operator.names import PoolKey
from diloco_operator.options import OperatorOptions

_MOST_DIGITS: Final = 4
"""Of an index; a pool has at most 10,000 learners."""


@dataclass(frozen=True)
class Bare:
    """A job whose spec need not be readable."""

    job: Object
    before: JobStatus
    observed: Observed
    now: datetime
    options: OperatorOptions

    @property
    def stop_fields(self) -> StopFields:
        """The fields that stop it."""
        return stop_fields(self.job)

    @cached_property
    def clusters(self) -> Clusters:
        """Where its regions are."""
        finalizers = self.job["metadata"].get("finalizers") or ()
        return Clusters(
            regions=said_regions(self.job),
            seen=with_same_places(
                {name: seen for name, seen in self.observed.clusters.items() if seen.settled}, self.observed.children
            ),
            before={region.name: region for region in self.before.regions},
            unscalable={key.cluster for key in self.observed.refused if key.kind == STATEFUL_SET},
            finalized=FINALIZER in finalizers,
            now=self.now,
            options=self.options,
        )

    @cached_property
    def left(self) -> PodsLeft:
        """Its pods."""
        after_seconds = self.lost_pod_policy.after_seconds
        return pods_left(self.observed.children, self.observed.looked, self.clusters, after_seconds)

    @property
    def lost_pod_policy(self) -> LostPodPolicy:
        """What becomes of pods on nodes that do not respond."""
        return policy_of(self.job)

    def lost_pods(self, *, stopping: bool) -> Verdict:
        """Its pods on such nodes; ``stopping``: it is to stop or has ended."""
        return lost_pods(
            Scene(
                workloads=self.workloads,
                observed=self.observed,
                clusters=self.clusters,
                policy=self.lost_pod_policy,
                deployment=self.deployment,
                syncer_stopped=self.annotation(SYNCER_STOPPED),
                stopping=stopping,
            )
        )

    @property
    def created(self) -> datetime | None:
        """When it was made, by the API server's clock; None: not known."""
        return parsed_time(self.job["metadata"].get("creationTimestamp"))

    @property
    def latest(self) -> datetime:
        """The time to record, by a clock that may be behind."""
        return latest_known(self.before, self.created, self.now)

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.job["metadata"]["name"])

    @property
    def deployment(self) -> Object | None:
        """The syncer's Deployment."""
        return syncer_deployment(self.name, self.observed.children)

    @property
    def told(self) -> SyncerStatusView | None:
        """The syncer's report; None: there is none, or the job has ended before, and nothing more is to come."""
        view = self.observed.syncer
        return view if isinstance(view, SyncerStatusView) and recorded_end(self.before) is None else None

    @property
    def volume(self) -> Volume:
        """The claim that holds its training."""
        return Volume(
            name=names.syncer(self.name),
            remembered=self.before.syncer.claim_uid if self.before.syncer else "",
            trained=has_trained(self.before),
            claim=syncer_claim(self.name, self.observed.children),
            start_anew=self.annotation(START_ANEW),
        )

    def annotation(self, name: str) -> str:
        """An annotation of the job; empty if it has none of this name."""
        return str((self.job["metadata"].get("annotations") or {}).get(name, ""))

    @property
    def not_revoked(self) -> list[Cause]:
        """The cause for certificates that the user has revoked and that are still accepted; none if it is all done."""
        secret = self.observed.children.get(ChildKey("Secret", names.syncer_secret(self.name)), {})
        pools = [one.pool for one in self.workloads]
        listed = revoked_list(secret.get("data") or {})
        return revocation_causes(not_in_force(self.annotation(REVOKED), pools, self.now, listed))

    @property
    def not_readmitted(self) -> list[Cause]:
        """The cause for learners that the user lets back in, and of whom the syncer was not told; none if it was."""
        problem = not_ordered(self.annotation(READMIT), self.observed.children, self.name)
        return [Cause(Reason.READMISSION_IGNORED, problem)] if problem else []

    @cached_property
    def workloads(self) -> list[PoolWorkload]:
        """Its pools, as the status remembers them."""
        found = []
        for region in self.before.regions:
            for pool in region.pools:
                name, cluster = PoolKey(region.name, pool.name), self.clusters.regions.get(region.name, HOME)
                key = ChildKey(STATEFUL_SET, pool.stateful_set, cluster)
                live = self.observed.children.get(key)
                out = self._given_up(name, pool, live)
                one = PoolWorkload(name, key, live, pool.desired, pool.minimum, given_up=out)
                found.append(replace(one, elsewhere=pool.elsewhere or 0))
        return found

    @cached_property
    def _out(self) -> dict[str, set[int]] | None:
        """The indices of the learners that the syncer reports as given up, by pool; None: it does not report."""
        if self.told is None:
            return None
        found: dict[str, set[int]] = {}
        for learner in given_up(self.told):
            pool, _, index = learner.rpartition("/")
            if index.isascii() and index.isdigit() and len(index) <= _MOST_DIGITS:
                found.setdefault(pool, set()).add(int(index))
        return found

    def _given_up(self, name: PoolKey, pool: PoolStatus, live: Object | None) -> frozenset[int]:
        """Indices of the pool's learners that are given up: of those that it has, or that were given up before."""
        before = frozenset(pool.given_up or ())
        if self._out is None:
            return before
        # Another cluster's server may say any number of pods.
        there = range(0 if live is None else replicas(live))
        return frozenset(index for index in self._out.get(str(name), ()) if index in before or index in there)
