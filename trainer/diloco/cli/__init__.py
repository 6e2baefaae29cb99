"""The ``diloco`` program. Commands read flags, call the code that does the work, and report errors in one line.

Only commands that compute import torch, so that ``diloco --help`` and ``diloco validate`` are quick.
"""
