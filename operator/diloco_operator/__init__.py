"""The operator: creates the learners and the syncer of each ``DiLoCoJob`` in a cluster.

Decisions are pure functions (``decide``, ``manifests``, ``names``). Only ``cluster`` talks to an API server. Of diloco
it uses what a user writes (``spec``) and what every process shares (``runtime``).
"""
