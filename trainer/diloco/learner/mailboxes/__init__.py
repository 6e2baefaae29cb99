"""The queues and slots through which the learner's threads exchange work, one kind per module."""
