"""Runs a job on this machine: real processes under a supervisor, fault injection, and a report at the end.

It replaces a cluster: it does with processes what the operator does with pods. It knows nothing of the algorithm: it
starts programs, polls the syncer's ``/status`` over HTTP, and reads the tape afterwards.
"""
