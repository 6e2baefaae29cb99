from itertools import pairwise

from diloco.runtime.reminders import Reminder


def said(reminder: Reminder, text: str, times: range) -> list[int]:
    return [now for now in times if reminder.due(text, float(now))]


def test_it_is_logged_at_once_and_again_at_growing_pauses() -> None:
    assert said(Reminder(), "away", range(0, 1000, 5)) == [0, 60, 180, 420, 900]


def test_pauses_end_at_an_hour() -> None:
    times = said(Reminder(), "away", range(0, 40_000, 20))
    assert {later - earlier for earlier, later in pairwise(times[6:])} == {3600}


def test_another_text_is_logged_soon_but_not_with_every_attempt() -> None:
    reminder = Reminder()
    assert reminder.due("refused", 0.0)
    assert [now for now in range(1, 61) if reminder.due(f"attempt {now}", float(now))] == [15, 30, 45, 60]


def test_a_new_problem_is_logged_at_once() -> None:
    reminder = Reminder()
    assert reminder.due("away", 0.0)
    reminder.over()
    assert reminder.may_speak(1.0)
    assert reminder.due("away", 1.0)
    assert not reminder.may_speak(2.0)
