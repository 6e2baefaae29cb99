"""Kubernetes' own types: the fields that it publishes, and which of their values go together."""
