"""What the syncer tells people and Prometheus."""
