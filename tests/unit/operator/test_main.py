"""What an operator's process is called."""

from diloco_operator.main import identity


def test_a_container_that_starts_again_in_its_pod_has_its_name() -> None:
    pod = {"POD_UID": "0d1c0c0e"}
    assert identity(pod, 1) == identity(pod, 1)
    assert identity(pod, 1).endswith("_0d1c0c0e")


def test_a_process_beside_the_first_or_without_a_pod_has_a_name_of_its_own() -> None:
    pod = {"POD_UID": "0d1c0c0e"}
    assert len({identity(pod, 1), identity(pod, 7), identity(pod, 7), identity({}, 1), identity({}, 1)}) == 5
