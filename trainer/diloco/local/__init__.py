"""Runs a job on this machine: real processes, supervised, with failures acted out, and a report at the end.

It stands in for a cluster: what the operator does with pods is done here with processes. It must not know the
algorithm: it starts programs, watches what the syncer says of itself over HTTP, and reads the tape it leaves behind.
"""
