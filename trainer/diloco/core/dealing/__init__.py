"""Deals the data's sequences to learners, each at most once an epoch, and counts what became of them."""
