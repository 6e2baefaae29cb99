"""Communication between learners and the syncer: typed messages, payloads in parts, gRPC channels, TLS."""
