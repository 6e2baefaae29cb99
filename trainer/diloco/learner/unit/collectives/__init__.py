"""What the processes of a learner sum, gather and send to each other."""
