"""A closed loop of learners, some of which are wrong: what they cost in loss."""
