"""On which nodes pods are."""
