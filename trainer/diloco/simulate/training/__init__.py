"""What simulated learners train: real tensors, or work that is only counted."""
