"""The operator: makes of a ``DiLoCoJob`` in a cluster the learners and the syncer that train it.

Decisions are pure functions (``decide``, ``manifests``, ``names``); ``cluster`` alone talks to an API
server. It knows ``diloco.spec`` and nothing else of diloco.
"""
