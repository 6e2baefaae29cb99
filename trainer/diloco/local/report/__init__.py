"""What is told of a run that has ended."""
