"""The operator's settings. `arguments` reads them from flags and environment."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """The operator's own settings; none of them belongs to a job."""

    operator_namespace: str
    """Where the operator runs: its lease is there, and its pods may read syncers' status."""
    trainer_image: str | None = None
    """Image of learners and syncers of jobs that name none. None: such jobs wait."""
    namespaces: tuple[str, ...] = ()
    """Namespaces whose jobs are reconciled; empty: all namespaces."""
    resync_seconds: float = 60.0
    """Every job is reconciled at least this often, even if nothing has changed."""
    poll_seconds: float = 5.0
    """How often the status of a running job's syncer is requested."""
    lease_name: str = "diloco-operator"
    """The Lease whose holder works; a second operator waits for it."""
    health_address: str = "0.0.0.0:8080"
    """``host:port`` of /healthz, /readyz and /metrics."""
    log_json: bool = False
    """Log one JSON object per line."""
    home_id: str = ""
    """What tells this home from others in clusters that several homes use. It is kept when the operator is installed
    again. Empty: nothing is created in other clusters."""
    remote_deletion_seconds: float = 600.0
    """The longest that a deleted, suspended or finished job waits for a cluster that does not answer."""

    def __post_init__(self) -> None:
        """Check the settings.

        Raises:
            ValueError: a setting is invalid; the text names it.
        """
        if not self.operator_namespace:
            raise ValueError("operator_namespace: is empty; use the namespace that the operator runs in")
        for name in ("resync_seconds", "poll_seconds", "remote_deletion_seconds"):
            value: float = getattr(self, name)
            if not value > 0:
                raise ValueError(f"{name}: {value} is not above 0; use a larger number of seconds")
