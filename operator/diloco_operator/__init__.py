"""The operator: creates the learners and the syncer of each ``DiLoCoJob`` in a cluster.

Decisions are pure functions (``decide``, ``manifests``, ``names``). Only ``cluster`` talks to an API server. Of the
trainer's packages it uses the manifest's models (``spec``) and what every process shares (``runtime``).
"""
