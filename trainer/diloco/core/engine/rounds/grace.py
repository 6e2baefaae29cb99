"""The grace window: how long a round that has its quorum waits for learners that are not ready (paper, Eq. 3).

``slack = tau * step - (quorum + sync)`` is the part of the overlap that synchronization leaves unused; a share ``gamma
< 1`` of it may be waited without delaying any learner. ``step`` (xi_step) is an inner step of the slowest learner that
counts towards the quorum, ``quorum`` (xi_quorum) the time from requesting a fragment until a quorum has sent it,
``sync`` (xi_sync) that from closing a round until learners train on its result: moving averages in seconds.
"""

from diloco.core.engine.state import EngineState


def grace_window(state: EngineState) -> tuple[float, str]:
    """Seconds of the window, clamped to [0, one inner step], or to the job's own maximum; and why."""
    options, overlap, step = state.options, overlap_steps(state), state.quorum_step_seconds
    quorum, sync = state.quorum_seconds.or_else(0.0), state.sync_seconds.or_else(0.0)
    slack = overlap * step - (quorum + sync)
    ceiling = step if options.grace_maximum_seconds is None else options.grace_maximum_seconds
    seconds = min(max(0.0, options.grace_safety * slack), ceiling)
    return seconds, (
        f"grace {seconds:.3f} s = {options.grace_safety:g} x slack {slack:.3f} s (overlap {overlap} x step {step:.3f} s"
        f" - quorum {quorum:.3f} s - sync {sync:.3f} s), at most {ceiling:.3f} s"
    )


def overlap_steps(state: EngineState) -> int:
    """The current tau."""
    least, allowed = state.options.schedule.overlap, state.overlap.allowed
    return least if allowed == state.overlap.least else max(least, state.options.schedule.spans(allowed))
