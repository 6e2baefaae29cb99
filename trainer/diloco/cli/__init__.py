"""The ``diloco`` program. Commands read options, call other packages, and report errors in one line.

Only commands that compute import torch, so that ``diloco --help`` and ``diloco validate`` are quick.
"""
