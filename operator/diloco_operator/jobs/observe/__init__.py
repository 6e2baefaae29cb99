"""Observes jobs for the decisions: asks the API server and the syncers."""
