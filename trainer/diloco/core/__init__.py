"""The algorithm, in pure code: no gRPC, Kubernetes, clock, files, threads or randomness of its own.

``engine`` decides which learners' fragments are merged when; ``merge``, ``outer`` and ``codec`` are the arithmetic and,
with ``downlink`` and ``feedback``, the modules that use torch. The other packages connect them to the world.
"""
