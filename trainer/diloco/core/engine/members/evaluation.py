"""Evaluations of the global model, and the end of the job.

The fastest learner that trains evaluates, as learners have the accelerators and the data. The job is complete when its
budget of tokens is merged, the rounds under way have ended, their means are made (`last_versions`) and the exported
model has been evaluated: by two learners if there are two, because one may be wrong. If they disagree a third is asked;
if no two agree, the higher loss counts.
"""

from collections.abc import Collection
from dataclasses import replace
from math import inf, isfinite

from diloco.core.engine.actions import Action, CancelTimer, Evaluate, Finish, Note, NoteKind, SetTimer
from diloco.core.engine.events import BudgetChanged, Evaluated
from diloco.core.engine.members import accounting
from diloco.core.engine.members.leases import heard
from diloco.core.engine.records import LearnerRecord, PendingEvaluation
from diloco.core.engine.rounds import last_versions, rounds
from diloco.core.engine.state import EngineState
from diloco.spec.status.engine import EvaluationStatus, LearnerState, Phase
from diloco.spec.words import listed

EVALUATION_TIMER = "evaluation"
FINAL_TIMER = "final"
FINAL_TRIES = 3
"""The job waits for its final evaluation this many times as long as one evaluation may take (ours)."""
DOUBTFUL_RATIO = 0.1
"""Share of the lowest training loss of the other learners: an evaluation below it is false or faulty (ours). Early in a
run the model may have a quarter of the loss of a learner that is slow and far away. One that is far above may show
overfitting, and a false one gains nothing by that."""
CONFIRMED_RATIO = 0.02
"""Relative difference up to which two evaluations of one model agree: devices round differently (ours)."""
LEAST_SECONDS = 60.0
"""An evaluation may always take this long (ours): its first one compiles."""
USUAL_TIMES = 4.0
"""It may take this many times as long as the shortest that another made (ours), and twice that for each learner that
did not answer: so neither silence nor a false speed keeps the job waiting."""


def advance(state: EngineState, now: float) -> list[Action]:
    """Order an evaluation if one is due, and end the job when its time has come. Called after every event."""
    actions: list[Action] = []
    if state.finished:
        return actions
    if state.roster.given_up and (failing := _below_minimum(state)):
        return _finish(state, now, complete=False, reason=failing)
    merged_tokens = state.merged_tokens
    if state.phase == Phase.TRAINING and merged_tokens >= state.budget_tokens:
        state.phase = Phase.EVALUATING
        state.phase_reason = f"{state.budget_tokens} tokens are merged"
        actions += rounds.abandon_open(state, "the budget is merged")
        actions.append(SetTimer(FINAL_TIMER, now + FINAL_TRIES * state.options.startup_seconds))
    if state.evaluation is not None:
        if state.current(state.evaluation.learner, state.evaluation.incarnation) is None:
            _failed(state, state.evaluation)
        elif state.phase == Phase.EVALUATING and not state.evaluation.final:
            if now - state.evaluation.since >= LEAST_SECONDS:
                _remember_silent(state, state.evaluation.learner)
            state.evaluation = None  # the budget was merged meanwhile
        else:
            return actions
    final = state.phase == Phase.EVALUATING
    actions += last_versions.order_means(state, now)
    if final and state.rounds:
        return actions
    if final or (state.phase == Phase.TRAINING and merged_tokens >= state.next_evaluation_tokens):
        actions += _order(state, now, final=final)
    return actions


def budget_changed(state: EngineState, event: BudgetChanged) -> list[Action]:
    """Set the budget. Training goes on with a larger one until the final model is evaluated."""
    state.budget = event
    text = f"{event.tokens} tokens, of which {round(state.merged_tokens)} are merged"
    actions: list[Action] = [Note(NoteKind.BUDGET_CHANGED, text)]
    if state.phase == Phase.EVALUATING and state.merged_tokens < event.tokens:
        for one in _final_losses(state):
            state.evaluations[state.evaluations.index(one)] = replace(one, final=False)
        state.phase, state.phase_reason = Phase.TRAINING, f"the budget is {text}"
        if state.evaluation is not None:
            state.evaluation = replace(state.evaluation, final=False)
        actions.append(CancelTimer(FINAL_TIMER))
    return actions


def _below_minimum(state: EngineState) -> str | None:
    """Why the job fails, as too few learners are left; None: they are enough."""
    given_up, remaining = state.roster.given_up, len(state.roster.remaining)
    if not given_up or remaining >= max(1, state.options.minimum_learners):
        return None
    return (
        f"{', '.join(sorted(given_up))} given up; {remaining} learner(s) left,"
        f" failurePolicy.minimumLearners is {state.options.minimum_learners}"
    )


def _order(state: EngineState, now: float, *, final: bool) -> list[Action]:
    losses = _final_losses(state) if final else []
    learner = _another_evaluator(state, losses) if losses else _fastest(state)
    if learner is None:
        return _conclude(state, now) if losses else []
    number = state.evaluations_ordered
    state.evaluations_ordered += 1
    versions = tuple(state.versions)
    tokens = round(state.merged_tokens)
    state.evaluation = PendingEvaluation(number, tokens, final, learner.id, learner.incarnation, now)
    reason = f"{tokens} tokens are merged; this learner is the fastest"
    if final:
        reason = "the final model, which another learner has evaluated" if losses else "the final model"
    return [
        Evaluate(learner.id, learner.incarnation, number, tokens, versions, final, reason),
        SetTimer(EVALUATION_TIMER, now + _allowed_seconds(state, learner)),
    ]


def _another_evaluator(state: EngineState, losses: list[EvaluationStatus]) -> LearnerRecord | None:
    """Who evaluates the final model besides those who have: nobody that has been silent costs time again."""
    without = {one.learner for one in losses}.union(state.did_not_evaluate, state.silent_evaluators)
    learner = _fastest(state, without)
    return learner if learner is not None and learner.state == LearnerState.TRAINING else None


def _allowed_seconds(state: EngineState, record: LearnerRecord) -> float:
    """How long a learner may take to answer."""
    most, found = state.options.startup_seconds, []
    for name, seconds in state.evaluation_seconds.items():
        own, other = record.step_seconds, state.learners[name].step_seconds if name in state.learners else None
        found.append(seconds * (max(1.0, own / other) if own and other else 1.0))
    if not found:
        return most
    receiving = len(state.versions) * (record.answer_seconds.mean or 0.0)
    usual = max(LEAST_SECONDS, USUAL_TIMES * (min(found) + receiving))
    return min(most, usual * 2.0 ** len(state.did_not_evaluate))


def _fastest(state: EngineState, without: Collection[str] = ()) -> LearnerRecord | None:
    # Learners without a measured step come last, unless none has one. The learner that evaluates must first receive the
    # final model, so one on a thin link is not fast.
    def key(record: LearnerRecord) -> tuple[bool, int, int, bool, bool, float, str]:
        return (
            record.id in state.doubted_learners,
            _place(record.id, state.did_not_evaluate),
            _place(record.id, state.silent_evaluators),
            record.state != LearnerState.TRAINING,
            record.missed_since is not None,
            (inf if record.step_seconds is None else record.step_seconds) + (record.answer_seconds.mean or 0.0),
            record.id,
        )

    able = (record for record in state.roster.working.values() if record.id not in without)
    return min(able, key=key, default=None)


def _place(learner: str, names: list[str]) -> int:
    return names.index(learner) if learner in names else -1


def evaluated(state: EngineState, event: Evaluated, now: float) -> list[Action]:
    """Process the report of an evaluation."""
    heard(state, event, now)
    pending = state.evaluation
    if pending is None or (pending.number, pending.incarnation) != (event.evaluation, event.incarnation):
        text = f"evaluation {event.evaluation} is no longer expected"
        return [Note(NoteKind.EVALUATION_DROPPED, text, event.learner)]
    if pending.final and not event.exact:
        _failed(state, pending)
        return [Note(NoteKind.EVALUATION_DROPPED, "it is not of exactly the final model", event.learner)]
    state.evaluation = None
    state.evaluation_seconds[pending.learner] = now - pending.since
    if pending.learner in state.silent_evaluators:
        state.silent_evaluators.remove(pending.learner)
    before = _final_losses(state) if pending.final else []
    if any(_agree(one.loss, event.loss) for one in before):
        return _confirmed(state, before, pending.learner, event.loss, now)
    doubted, notes = (True, []) if before else _judge(state, pending.learner, event.loss)
    loss = event.loss if isfinite(event.loss) else None
    made = EvaluationStatus(pending.tokens, loss, state.elapsed(now), pending.final, doubted, pending.learner)
    state.evaluations.append(made)
    done: list[Action] = [CancelTimer(EVALUATION_TIMER), *notes]
    if pending.final:
        return done  # another is asked, or the job ends
    if doubted and _another(state):
        return done  # ordered from another learner at the next event
    state.did_not_evaluate.clear()
    state.doubted_learners.clear()
    every = state.evaluate_every_tokens
    state.next_evaluation_tokens = (pending.tokens // every + 1) * every
    return done


def _final_losses(state: EngineState) -> list[EvaluationStatus]:
    """What learners have found of the final model."""
    tokens = round(state.merged_tokens)
    return [one for one in state.evaluations if one.final and one.tokens == tokens]


def _confirmed(
    state: EngineState, before: list[EvaluationStatus], learner: str, loss: float, now: float
) -> list[Action]:
    """End the job, as a learner has found the same loss as another; any other loss stays in doubt."""
    for index, one in enumerate(state.evaluations):
        if one in before:
            state.evaluations[index] = replace(one, doubted=not _agree(one.loss, loss))
    note = Note(NoteKind.EVALUATION_CONFIRMED, f"two learners found {loss:.4g}", learner)
    return [note, *_conclude(state, now, f"{learner} found {_shown(loss)} too")]


def _conclude(state: EngineState, now: float, confirmed: str = "") -> list[Action]:
    """End the job with what learners have found of the final model. If no two agree, the highest loss counts."""
    reason, losses = state.phase_reason, _final_losses(state)
    if len(losses) > 1:
        highest = max(losses, key=lambda one: -inf if one.loss is None else one.loss)
        for one in losses if not confirmed else ():
            state.evaluations[state.evaluations.index(one)] = replace(one, doubted=one is not highest)
        found = listed([f"{_shown(one.loss)} by {one.learner}" for one in losses], "and")
        reason += f"; learners disagree on the loss of the final model: {found}; {confirmed or 'the highest counts'}"
    return _finish(state, now, complete=True, reason=reason)


def _shown(loss: float | None) -> str:
    return f"{loss:.4g}" if loss is not None and isfinite(loss) else "no number"


def _judge(state: EngineState, learner: str, loss: float) -> tuple[bool, list[Action]]:
    """Whether an evaluation is in doubt, from the others' losses or because another evaluation agrees; with a note."""
    if learner in state.doubted_learners:
        # The other learner has gone, and no learner may confirm its own evaluation.
        text = "it was in doubt before, and there is no other learner to ask"
        return True, [Note(NoteKind.EVALUATION_DOUBTED, text, learner)]
    # While a learner is in doubt, so is the evaluation before this one: a credible one would have ended the doubt.
    before = state.evaluations[-1] if state.doubted_learners else None
    if before is not None and _agree(before.loss, loss):
        state.evaluations[-1] = replace(before, doubted=False)
        return False, [Note(NoteKind.EVALUATION_CONFIRMED, f"two learners found {loss:.4g}", learner)]
    others = [
        record.loss
        for record in state.roster.working.values()
        if record.id != learner and record.loss is not None and isfinite(record.loss)
    ]
    if not others or loss >= DOUBTFUL_RATIO * min(others):
        return False, []
    state.doubted_learners.add(learner)
    text = f"its loss of {loss:.4g} is not credible: the other learners train at {min(others):.4g} or more"
    return True, [Note(NoteKind.EVALUATION_DOUBTED, text, learner)]


def _agree(one: float | None, other: float) -> bool:
    """Whether two losses of one model agree; None: not a number."""
    return not isfinite(other) if one is None else abs(one - other) <= CONFIRMED_RATIO * abs(one)


def _another(state: EngineState) -> bool:
    """Whether there is another learner whose evaluation is not in doubt."""
    return not state.doubted_learners.issuperset(state.roster.working)


def timer(state: EngineState, name: str, now: float) -> list[Action]:
    """Process a timer: order an evaluation that takes too long from another learner, or give up the final one."""
    if name == FINAL_TIMER and state.phase == Phase.EVALUATING:
        if _final_losses(state):
            return _conclude(state, now)
        reason = f"{state.phase_reason}; no learner evaluated the final model in time"
        return _finish(state, now, complete=True, reason=reason)
    if name == EVALUATION_TIMER and state.evaluation is not None:
        pending = state.evaluation
        _failed(state, pending)
        _remember_silent(state, pending.learner)
        text = f"no answer within {now - pending.since:.3g} s"
        return [Note(NoteKind.EVALUATION_DROPPED, text, pending.learner)]
    return []


def _failed(state: EngineState, pending: PendingEvaluation) -> None:
    """End an evaluation that gives no loss: all other learners are asked before its learner is asked again."""
    state.evaluation = None
    others = [learner for learner in state.did_not_evaluate if learner != pending.learner]
    state.did_not_evaluate = [*others, pending.learner]


def _remember_silent(state: EngineState, learner: str) -> None:
    """Ask this learner after the others from now on."""
    state.silent_evaluators = [*(one for one in state.silent_evaluators if one != learner), learner]


def _finish(state: EngineState, now: float, *, complete: bool, reason: str) -> list[Action]:
    accounting.finished(state, now)
    state.phase = Phase.COMPLETE if complete else Phase.FAILED
    state.phase_reason = reason
    actions = rounds.abandon_open(state, reason)
    return [*actions, CancelTimer(EVALUATION_TIMER), CancelTimer(FINAL_TIMER), Finish(complete, reason)]
