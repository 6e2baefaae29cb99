"""What every diloco process needs of its host: durable files, a small HTTP server, logging, exit codes.

It depends on no other package of diloco.
"""
