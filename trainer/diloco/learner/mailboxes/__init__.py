"""What the learner's threads hand each other, one kind a file."""
