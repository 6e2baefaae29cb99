"""Runs a job on this machine: real processes, supervised, with fault injection, and a report at the end.

It does with processes what the operator does with pods: it starts programs, polls the syncer's status over HTTP, and
reads the tape afterwards.
"""
