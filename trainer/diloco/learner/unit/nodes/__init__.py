"""How the nodes of a learner find each other, and end together."""
