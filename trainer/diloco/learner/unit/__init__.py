"""A learner of several processes: the first is the learner, the others do what it tells them."""
