"""The chart is installed with the checkout's images and a test's own values."""

from testbed.kind.chart import local_values, merged
from testbed.kind.project_images import Images


def test_values_name_the_images_by_tag() -> None:
    values = local_values(Images("diloco-operator:1a", "diloco-trainer:1a"))
    assert values["image"] == {"repository": "diloco-operator", "tag": "1a"}
    assert values["trainer"]["image"] == {"repository": "diloco-trainer", "tag": "1a"}


def test_changes_go_into_mappings_and_replace_all_else() -> None:
    values = {"a": {"b": 1, "c": [1]}, "d": 2}
    assert merged(values, {"a": {"c": [2]}, "d": {"e": 3}}) == {"a": {"b": 1, "c": [2]}, "d": {"e": 3}}
    assert values == {"a": {"b": 1, "c": [1]}, "d": 2}
