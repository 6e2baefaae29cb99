"""The processes of a learner: the first, the others, and those of a loop of the user's own; each ends with a code."""
