"""After a restart: what learners hold that is newer than the checkpoint."""
