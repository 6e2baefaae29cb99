"""Which learners are in the job: joining, replacing an earlier process, leaving, giving up.

Each id counts once. A process that joins with an id replaces the process that had it. The replaced process is
remembered, so that it cannot replace the new one in turn; nor can any other that holds the model, which a process that
has just begun does not. A process that reconnects (its link broke, or it was frozen) keeps its work.
"""

from diloco.core.account import recovery
from diloco.core.engine.actions import Action, Admit, Checkpoint, Fence, Note, NoteKind, Refusal, Refuse
from diloco.core.engine.events import (
    LearnerFailed,
    LearnerJoined,
    LearnerLeft,
    LearnerReadmitted,
    LearnerReady,
    StepReported,
)
from diloco.core.engine.members import divergence, leases, pools, standing
from diloco.core.engine.records import LearnerRecord
from diloco.core.engine.rounds import rounds
from diloco.core.engine.rounds.averages import SizedSpread, StepAverage
from diloco.core.engine.state import INCARNATIONS_PER_EPOCH, EngineState
from diloco.core.process_name import in_another_pod
from diloco.spec.status.engine import LearnerState, Phase

REMEMBERED_PROCESSES = 16


def join(state: EngineState, event: LearnerJoined, now: float) -> list[Action]:
    """Admit a process, or refuse it."""
    refusal = _refusal(state, event)
    if refusal is not None:
        return [Refuse(event.learner, event.instance, *refusal)]
    record = state.learners.setdefault(event.learner, LearnerRecord(event.learner))
    same_process = record.instance == event.instance
    actions: list[Action] = []
    if record.present:
        state.gone[record.id] = False
        record.recovering = recovery.lost(record.recovering, record.last_heard_at)
        actions.append(
            Fence(record.id, record.incarnation, Refusal.LEASE_EXPIRED, "the same process has joined again")
            if same_process
            else Fence(record.id, record.incarnation, Refusal.SUPERSEDED, "another process has joined with this id")
        )
    how = "back after its connection broke" if same_process else _take_over(record, event.instance)
    allowed = state.options.max_restarts
    if not same_process and allowed is not None and record.restarts > allowed:
        _give_up(state, record, now)
        text = f"restarted {record.restarts} times; failurePolicy.maxRestartsPerLearner allows {allowed}"
        return [*actions, Refuse(event.learner, event.instance, Refusal.GIVEN_UP, text)]
    divergence.joins(state, record, now)
    reset = record.standing.reset_due
    reported = record.step, record.tokens
    load = _begin_session(state, record, event, now)
    _count_time(state, record, now)
    shares = state.options.shares
    record.account.joined(record.allotted(now), record.step, record.versions, shares, same_process=same_process)
    if record.recovering is not None:
        record.recovering = record.recovering.joined(now, record.incarnation, same_process=same_process)
    loads = f"{len(load)} of {len(state.versions)} fragments" if same_process else "the model"
    reason = "first join" if record.joins == 1 else f"{how}, loads {loads}"
    reason += f", starts over: {record.standing.reason}" if reset else ""
    counts = (record.step, record.data_position, *reported)
    session = (record.id, event.instance, record.incarnation, load, tuple(state.versions))
    admit = Admit(*session, *counts, reason, reset, tuple(record.counted_in))
    return [*actions, admit, *leases.watch(state, [record], now), *divergence.watch(state, now)]


def _take_over(record: LearnerRecord, instance: str) -> str:
    """A process takes the place of the one before: remember that one, and count a restart. Returns how it came."""
    # A process that fails is started again in its pod. A new pod means that the earlier one was taken away, with its
    # node or from it, whether or not the process could still say so. One that is evicted says that it leaves.
    moved, left = in_another_pod(instance, record.instance), record.left_cleanly
    if record.instance:
        record.superseded = [*record.superseded, record.instance][-REMEMBERED_PROCESSES:]
        record.restarts += not (moved or left)
    return f"restarted {'after leaving' if left else 'in another pod' if moved else f'(restart {record.restarts})'}"


def _begin_session(state: EngineState, record: LearnerRecord, event: LearnerJoined, now: float) -> tuple[int, ...]:
    """Admit the process; returns the fragments that it must load."""
    made = max(0, event.steps - record.step)
    if record.instance == event.instance:
        # How long the syncer was away is not known: it grants what can be pushed of that time.
        bound, restarted = state.options.max_staleness_steps, not record.incarnation
        seconds = record.credit.least_step_seconds * bound if restarted else now - record.last_heard_at
        record.credit.away(record.pace, made, seconds)
        record.tokens += int(made * record.pace.tokens_per_step)  # its next report says it exactly
    else:
        record.earlier, record.pace = record.measured or StepAverage(), StepAverage()
        record.answer_seconds, record.missed_since = SizedSpread(), None
        record.lead_steps = record.longest_lead_steps = 0
    record.instance, record.left_cleanly = event.instance, False
    record.incarnation = state.epoch * INCARNATIONS_PER_EPOCH + state.next_incarnation
    state.next_incarnation += 1
    record.joins += 1
    record.step += made
    record.data_position = max(record.data_position, event.data_position)
    held = event.versions if len(event.versions) == len(state.versions) else (-1,) * len(state.versions)
    load = tuple(range(len(held))) if record.standing.reset_due else _to_load(state, held)
    _holds(state, record, held, load)
    record.joined_at = record.last_heard_at = record.idle_since = now
    record.idle_seconds = 0.0
    state.becomes(record, LearnerState.LOADING)
    return load


def _count_time(state: EngineState, record: LearnerRecord, now: float) -> None:
    record.allotted_since = now if record.allotted_since is None else record.allotted_since
    if state.elapsed_since is None:
        state.elapsed_since = now
        for known in state.counted_learners:  # after a restart of the syncer, learners that do not return count too
            known.allotted_since = now if known.joins else None
        pools.settle(state, now)
    pools.entered(state, record, now)


def readmit(state: EngineState, event: LearnerReadmitted) -> list[Action]:
    """Let a learner that was given up join again; its restarts are counted from zero."""
    record = state.learners.get(event.learner)
    if record is None or record.state != LearnerState.GIVEN_UP or record.incarnation != event.incarnation:
        return []
    text = f"was given up after {record.restarts} restarts and may join again"
    record.restarts = 0
    state.becomes(record, LearnerState.ABSENT)
    # The next process is the first one of this count, and no restart.
    record.superseded = [*record.superseded, record.instance][-REMEMBERED_PROCESSES:]
    record.instance = ""
    # Nobody gives the order again, so it must outlast this process.
    return [Note(NoteKind.LEARNER_READMITTED, text, record.id), Checkpoint(f"{record.id} may join again")]


def failed(state: EngineState, event: LearnerFailed, now: float) -> list[Action]:
    """Give a learner up whose process fails before it can join, for which it would be given up."""
    record, allowed = state.learners.get(event.learner), state.options.max_restarts
    if record is None or allowed is None or record.state != LearnerState.ABSENT:
        return []
    if record.incarnation != event.incarnation:
        return []
    _give_up(state, record, now)
    record.restarts = max(record.restarts, allowed + 1)
    text = f"fails before it can join; failurePolicy.maxRestartsPerLearner allows {allowed} restarts"
    # As with one that is refused, what is known of it must outlast this process: nobody may see it fail again.
    return [Note(NoteKind.LEARNER_GIVEN_UP, text, record.id), Checkpoint(f"{record.id} is given up")]


def _give_up(state: EngineState, record: LearnerRecord, now: float) -> None:
    state.becomes(record, LearnerState.GIVEN_UP)
    pools.withdraw(state, record, now)
    state.fewer_left = True


def _holds(state: EngineState, record: LearnerRecord, held: tuple[int, ...], load: tuple[int, ...]) -> None:
    """Note which versions a process holds that joins, but for those that it must ``load``."""
    record.versions = [-1 if p in load else version for p, version in enumerate(held)]
    turns = record.turn_steps or [record.step] * len(held)
    # Fragments that others merged in the meantime have had their turn without this learner, which receives them now.
    passed = [version < current for version, current in zip(held, state.versions, strict=True)]
    record.turn_steps = [record.step if over else step for over, step in zip(passed, turns, strict=True)]
    count = len(held)
    record.received_steps = record.received_steps or [record.step] * count
    record.received_tokens = record.received_tokens or [record.credit.tokens] * count
    record.credit.merged_tokens = record.credit.merged_tokens or [0.0] * count
    record.merged_into = record.merged_into or [0] * count
    record.counted_in = record.counted_in or [0] * count


def _refusal(state: EngineState, event: LearnerJoined) -> tuple[Refusal, str] | None:
    unknown = pools.problem_with(state, event.learner)
    if unknown is not None:
        return Refusal.UNKNOWN_LEARNER, unknown
    if state.finished:
        return Refusal.FINISHED, f"the job is over: {state.phase_reason}"
    record = state.learners.get(event.learner)
    if record is None:
        return None
    if record.state == LearnerState.GIVEN_UP:
        return Refusal.GIVEN_UP, f"{record.id} was given up after {record.restarts} restarts"
    another = event.instance != record.instance and any(version >= 0 for version in event.versions)
    if another or event.instance in record.superseded:
        return Refusal.SUPERSEDED, f"another process has joined as {record.id} since"
    return None


def _to_load(state: EngineState, held: tuple[int, ...]) -> tuple[int, ...]:
    """Fragments the process must receive: those it does not hold (-1), or holds in a version too old to be merged."""
    lag = state.options.max_version_lag
    return tuple(
        p
        for p, (version, current) in enumerate(zip(held, state.versions, strict=True))
        if version < 0 or version > current or current - version > lag
    )


def ready(state: EngineState, event: LearnerReady, now: float) -> list[Action]:
    """Note that the learner has the model and trains."""
    record = leases.heard(state, event, now)
    if record is None or record.state != LearnerState.LOADING:
        return []
    record.idle_seconds = 0.0
    for fragment, version in enumerate(record.versions):
        if version < 0:
            record.received_steps[fragment], record.received_tokens[fragment] = record.step, record.credit.tokens
    record.versions = [
        current if held < 0 else held for held, current in zip(record.versions, state.versions, strict=True)
    ]
    record.idle_since = now
    if record.recovering is not None:
        record.recovering = record.recovering.loaded(now)
    if record.standing.quarantined:
        state.becomes(record, LearnerState.QUARANTINED)
        text = f"has the model and is in quarantine: {record.standing.reason}"
        return [Note(NoteKind.LEARNER_WAITS, text, record.id)]
    standing.loaded(record.standing)
    if record.id not in state.planned:
        state.becomes(record, LearnerState.UNPLANNED)
        return [Note(NoteKind.LEARNER_WAITS, "has the model and waits until the manifest plans it", record.id)]
    return _begins(state, record, now)


def _begins(state: EngineState, record: LearnerRecord, now: float) -> list[Action]:
    """A learner with the model takes part from now on; its clock is set to the schedule."""
    record.clock = state.options.schedule.due(state.launched)
    state.becomes(record, LearnerState.TRAINING)
    if state.phase == Phase.WAITING:
        begins = "merging begins once half of the planned learners have made a step"
        seconds = f"{state.options.startup_seconds:g} s after the first joined (sync.startupSeconds)"
        waits = "" if state.begun else f"; {begins}, or {seconds}"
        state.phase, state.phase_reason = Phase.TRAINING, f"{record.id} trains{waits}"
    trains = Note(NoteKind.LEARNER_TRAINS, f"loaded the model, its clock starts at {record.clock}", record.id)
    return [trains, *rounds.learner_ready(state, record, now)]


def plan_changed(state: EngineState, now: float) -> list[Action]:
    """Let learners take part that are planned now, and no longer those that are not."""
    actions: list[Action] = []
    for record in state.ordered_learners:
        planned = record.id in state.planned
        if record.state == LearnerState.UNPLANNED and planned:
            record.turn_steps = [record.step] * len(record.turn_steps)
            actions += _begins(state, record, now)
        elif record.working and not planned:
            state.becomes(record, LearnerState.UNPLANNED)
            state.gone[record.id] = False
            text = "is no longer planned: nothing more is asked of it"
            actions.append(Note(NoteKind.LEARNER_WAITS, text, record.id))
    return actions


def stepped(state: EngineState, event: StepReported, now: float) -> list[Action]:
    """Process a step report; it may stand for several steps, as reports may have been coalesced."""
    record = state.current(event.learner, event.incarnation)
    if record is None:
        return []
    if event.step >= record.account.step:
        record.account.reported(record.allotted(now), event.step, event.spent)
    steps = event.step - record.step
    if steps <= 0:
        leases.heard(state, event, now)
        return []
    record.last_heard_at, record.idle_seconds = now, 0.0
    if record.recovering is not None:
        record.recovering = record.recovering.stepped(now)
    first, tokens = not record.pace.reports, max(0, event.tokens - record.tokens)
    record.step, record.tokens = event.step, event.tokens
    record.loss = event.loss
    record.data_position = max(record.data_position, event.data_position)
    record.pace.add(event.step_seconds, steps, tokens)
    counted = record.credit.report(record.pace, steps, tokens)
    # The first step ends the longer limit for starting up.
    actions = leases.watch(state, [record], now) if first else []
    record.idle_since = now
    if not record.working:
        return actions
    record.clock = state.options.schedule.advanced(record.clock, counted, state.launched)
    if record.state == LearnerState.STALLED:
        state.becomes(record, LearnerState.TRAINING)
        actions.append(Note(NoteKind.LEARNER_TRAINS, "makes steps again", record.id))
    else:
        state.roster.moved(record)
    return actions + rounds.stepped(state, record, now)


def left(state: EngineState, event: LearnerLeft, now: float) -> list[Action]:
    """End a learner's session."""
    record = state.current(event.learner, event.incarnation)
    if record is None:
        return []
    record.left_cleanly = event.clean
    leases.lose(state, record, now, now)
    return [Note(NoteKind.LEARNER_LEFT, "left" if event.clean else "its connection broke", record.id)]
