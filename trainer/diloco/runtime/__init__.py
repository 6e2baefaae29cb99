"""What every diloco process needs of its host: durable files, a small HTTP server, logging, exit codes.

It must not know what the process does: nothing of the wire, the engine, tensors or the manifest.
"""
