"""What a learner exchanges with the syncer, on one event loop beside the thread that trains."""
