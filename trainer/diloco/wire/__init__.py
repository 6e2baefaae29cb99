"""Communication between learners and the syncer: typed messages, chunked payloads, gRPC channels, TLS."""
