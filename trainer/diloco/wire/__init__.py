"""The wire between learners and the syncer: typed messages, chunked payloads, gRPC channels, TLS.

It carries and checks; it decides nothing about training. It must not know tensors, codecs, the engine or the manifest.
"""
