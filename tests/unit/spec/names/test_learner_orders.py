from diloco.spec.names.learner_orders import LearnerOrder, orders_in, orders_text


def test_what_is_written_is_read() -> None:
    orders = (LearnerOrder("east/a/0", 3, 3_000_001), LearnerOrder("west/old-1/12", 1, 0))
    assert orders_in(orders_text(reversed(orders))) == orders


def test_lines_of_another_form_are_ignored() -> None:
    text = "east/a/0 1 2\neast/a/1 1\n\neast/a/x 1 2\neast/a/2 -1 2\neast/a/3 1 2 3\neast/a/4 \u0661 2\n"
    assert orders_in(text) == (LearnerOrder("east/a/0", 1, 2),)
