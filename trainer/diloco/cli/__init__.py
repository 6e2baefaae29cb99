"""The front door: the ``diloco`` program. Commands read flags, call what does the work, and say errors in one line.

torch is imported by the commands that compute and by no other: ``diloco --help`` and ``diloco validate`` are quick.
"""
