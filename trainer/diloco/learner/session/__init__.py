"""A training loop of the user's own (``spec.loop``), around which a learner does the rest."""

from diloco.learner.session.job_session import Session, SessionError
from diloco.learner.session.loop_state import Stateful
from diloco.learner.session.own_loop import session

__all__ = ["Session", "SessionError", "Stateful", "session"]
