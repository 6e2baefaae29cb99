"""A learner's side of the wire."""
