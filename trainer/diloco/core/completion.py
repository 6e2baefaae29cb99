"""Evaluations of the global model, and the end of the job.

The fastest learner that trains evaluates, as learners have the accelerators and the data. The job is complete when its
budget of tokens is merged, the rounds under way have ended and the exported model has been evaluated.
"""

from math import isfinite

from diloco.core import rounds
from diloco.core.actions import Action, CancelTimer, Evaluate, Finish, Note, SetTimer
from diloco.core.events import Evaluated
from diloco.core.leases import heard
from diloco.core.options import Rules
from diloco.core.state import EngineState, EvaluationRecord, LearnerRecord, PendingEvaluation
from diloco.spec.syncer_status import LearnerState, Phase

EVALUATION_TIMER = "evaluation"
FINAL_TIMER = "final"
FINAL_TRIES = 3
"""The job waits for its final evaluation this many times as long as one evaluation may take (ours)."""
DOUBTFUL_RATIO = 0.1
"""Share of the lowest training loss of the other learners: an evaluation below it is false or faulty (ours). Early in a
run the model may have a quarter of the loss of a learner that is slow and far away. One that is far above may show
overfitting, and a false one gains nothing by that."""
CONFIRMED_RATIO = 0.05
"""Relative difference up to which two evaluations of one model agree: devices round differently (ours)."""


def advance(state: EngineState, now: float) -> list[Action]:
    """Order an evaluation if one is due, and end the job when its time has come. Called after every event."""
    if state.finished:
        return []
    actions = _fail_below_minimum(state)
    if actions:
        return actions
    if state.phase == Phase.TRAINING and state.merged_tokens >= state.options.budget_tokens:
        state.phase = Phase.EVALUATING
        state.phase_reason = f"{state.options.budget_tokens} tokens are merged"
        actions += rounds.abandon_open(state, "the budget is merged")
        actions.append(SetTimer(FINAL_TIMER, now + FINAL_TRIES * state.options.startup_seconds))
    if state.evaluation is not None:
        stopped = state.current(state.evaluation.learner, state.evaluation.incarnation) is None
        overtaken = state.phase == Phase.EVALUATING and not state.evaluation.final
        if not stopped and not overtaken:
            return actions
        state.evaluation = None
    final = state.phase == Phase.EVALUATING
    if final and state.rounds:
        return actions
    if final or (state.phase == Phase.TRAINING and state.merged_tokens >= state.next_evaluation_tokens):
        actions += _order(state, now, final=final)
    return actions


def _fail_below_minimum(state: EngineState) -> list[Action]:
    counted = state.counted_learners
    given_up = [record.id for record in counted if record.state == LearnerState.GIVEN_UP]
    remaining = len(counted) - len(given_up)
    if not given_up or remaining >= max(1, state.options.minimum_learners):
        return []
    reason = (
        f"{', '.join(given_up)} given up; {remaining} learner(s) left,"
        f" failurePolicy.minimumLearners is {state.options.minimum_learners}"
    )
    return _finish(state, complete=False, reason=reason)


def _order(state: EngineState, now: float, *, final: bool) -> list[Action]:
    learner = _fastest(state)
    if learner is None:
        return []
    number = state.evaluations_ordered
    state.evaluations_ordered += 1
    versions = tuple(state.versions)
    tokens = round(state.merged_tokens)
    state.evaluation = PendingEvaluation(number, tokens, final, learner.id, learner.incarnation, versions)
    reason = "the final model" if final else f"{tokens} tokens are merged; this learner is the fastest"
    return [
        Evaluate(learner.id, learner.incarnation, number, tokens, versions, final, reason),
        SetTimer(EVALUATION_TIMER, now + state.options.startup_seconds),
    ]


def _fastest(state: EngineState) -> LearnerRecord | None:
    working = [record for record in state.ordered_learners if record.working]
    by_link = state.options.rules != Rules.ARRIVED

    # Learners without a measured step come last, unless none has one. The learner that evaluates must first receive the
    # final model, so one on a thin link is not fast.
    def key(record: LearnerRecord) -> tuple[bool, bool, bool, bool, float, str]:
        answer_seconds = record.answer_seconds.mean if by_link else None
        return (
            record.id in state.doubted_learners,
            record.id in state.did_not_evaluate,
            record.state != LearnerState.TRAINING,
            by_link and record.missed,
            record.step_seconds.or_else(float("inf")) + (answer_seconds or 0.0),
            record.id,
        )

    return min(working, key=key, default=None)


def evaluated(state: EngineState, event: Evaluated, now: float) -> list[Action]:
    """Process the report of an evaluation."""
    heard(state, event.learner, event.incarnation, now)
    pending = state.evaluation
    if pending is None or (pending.number, pending.incarnation) != (event.evaluation, event.incarnation):
        return [Note("EvaluationDropped", f"evaluation {event.evaluation} is no longer expected", event.learner)]
    state.evaluation = None
    state.did_not_evaluate.clear()
    if pending.final and not event.exact:
        return [Note("EvaluationDropped", "it is not of exactly the final model", event.learner)]
    found = EvaluationRecord(pending.tokens, event.loss, state.elapsed(now), pending.final)
    state.evaluations.append(found)
    done: list[Action] = [CancelTimer(EVALUATION_TIMER)]
    done += _judge(state, pending, found)
    if found.doubted and _another(state):
        return done  # ordered from another learner at the next event
    state.doubted_learners.clear()
    every = state.options.evaluate_every_tokens
    state.next_evaluation_tokens = (pending.tokens // every + 1) * every
    if pending.final:
        done += _finish(state, complete=True, reason=state.phase_reason)
    return done


def _judge(state: EngineState, pending: PendingEvaluation, found: EvaluationRecord) -> list[Action]:
    """Decide whether an evaluation is credible, from the others' losses or because another evaluation agrees."""
    if state.options.rules < Rules.GUARDED:
        return []
    notes: list[Action] = []
    if pending.learner in state.doubted_learners:
        # The other learner has gone, and no learner may confirm its own evaluation.
        found.doubted = True
        return [
            Note("EvaluationDoubted", "it was in doubt before, and there is no other learner to ask", pending.learner)
        ]
    # While a learner is in doubt, so is the evaluation before this one: a credible one would have ended the doubt.
    before = state.evaluations[-2] if state.doubted_learners else None
    if before is not None and _agree(before.loss, found.loss):
        before.doubted = False
        return [Note("EvaluationConfirmed", f"two learners found {found.loss:.4g}", pending.learner)]
    others = [
        record.loss
        for record in state.ordered_learners
        if record.working and record.id != pending.learner and record.loss is not None and isfinite(record.loss)
    ]
    if others and not found.loss >= DOUBTFUL_RATIO * min(others):
        found.doubted = True
        state.doubted_learners.add(pending.learner)
        text = f"its loss of {found.loss:.4g} is not credible: the other learners train at {min(others):.4g} or more"
        notes.append(Note("EvaluationDoubted", text, pending.learner))
    return notes


def _agree(one: float, other: float) -> bool:
    return repr(one) == repr(other) or (isfinite(one) and abs(one - other) <= CONFIRMED_RATIO * abs(one))


def _another(state: EngineState) -> bool:
    """Whether there is another learner whose evaluation is not in doubt."""
    return any(record.working and record.id not in state.doubted_learners for record in state.learners.values())


def timer(state: EngineState, name: str) -> list[Action]:
    """Process a timer: order an evaluation that takes too long from another learner, or give up the final one."""
    if name == FINAL_TIMER and state.phase == Phase.EVALUATING:
        reason = f"{state.phase_reason}; no learner evaluated the final model in time"
        return _finish(state, complete=True, reason=reason)
    if name == EVALUATION_TIMER and state.evaluation is not None:
        learner = state.evaluation.learner
        state.evaluation = None
        state.did_not_evaluate.add(learner)
        return [Note("EvaluationDropped", f"no answer within {state.options.startup_seconds:g} s", learner)]
    return []


def _finish(state: EngineState, *, complete: bool, reason: str) -> list[Action]:
    state.phase = Phase.COMPLETE if complete else Phase.FAILED
    state.phase_reason = reason
    actions = rounds.abandon_open(state, reason)
    return [*actions, CancelTimer(EVALUATION_TIMER), CancelTimer(FINAL_TIMER), Finish(complete, reason)]
