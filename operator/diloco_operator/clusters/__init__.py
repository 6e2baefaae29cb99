"""The other clusters that regions of a job are in: their kubeconfigs, states and objects.

`cluster` speaks to one API server. This package chooses which ones, and says what is wrong with those that are away.
"""
