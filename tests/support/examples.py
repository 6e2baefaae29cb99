"""How many examples a property is tried with that does not take the profile's own number."""

from hypothesis import settings

_USUAL = 100


def examples(number: int) -> int:
    """This many with hypothesis' usual profile of 100; as large a part of them as another profile has of 100."""
    profile = settings.get_profile(settings.get_current_profile_name())
    return max(1, number * profile.max_examples // _USUAL)
