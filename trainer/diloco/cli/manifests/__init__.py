"""What is known of a job before it runs: whether it is valid, what it needs, its objects in a cluster."""
