"""Images of older code are distinguished from current ones, and from other images."""

from testbed.kind.project_images import others

NAMES = ("localhost/diloco-operator:new", "localhost/diloco-trainer:new")


def test_only_the_projects_images_of_other_code_are_older() -> None:
    old = "localhost/diloco-trainer:old"
    not_ours = ["diloco-trainer:old", "localhost/diloco-trainer-mine:old", "sha256:0a1b", "registry.example/pause:3"]
    assert others(NAMES, [*NAMES, old, *not_ours]) == [old]
