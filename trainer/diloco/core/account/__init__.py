"""Where the learners' time goes. No decision depends on it."""
