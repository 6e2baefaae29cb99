"""Communication between learners and the syncer: typed messages, payloads in parts, gRPC channels, TLS."""

import os

# gRPC reads it while it is loaded, which nothing does before this. Its handlers abort what a user's code forks while
# transfers are under way, such as the workers of a DataLoader (grpc/grpc#32992); nothing forked here uses gRPC.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
