"""The algorithm, pure: no gRPC, Kubernetes, clock, files, threads or randomness of its own.

``engine`` decides which learners' fragments are merged when; ``merge``, ``outer`` and ``codec`` are the arithmetic (the
only modules that know torch); everything else in diloco is a shell around them.
"""
