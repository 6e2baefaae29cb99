"""The algorithm, in pure code: no gRPC, Kubernetes, clock, files, threads or randomness of its own.

``engine`` decides which learners' fragments are merged when. ``merge``, ``outer_optimizer`` and ``codec`` are the
arithmetic; they, ``downlink`` and ``feedback`` use torch. The other packages connect all of them to the world.
"""
