"""The only package that talks to an API server. Objects are plain dicts on both sides of it.

kubernetes 37's typed models refuse fields that they do not know, and its informer polls a dead server without a pause,
asks for no bookmarks and needs a thread a kind. So only the transport of its asyncio half is used (addresses, TLS,
tokens and their renewal, exec plugins); requests, lists and watches are a few small functions here.

It must not know what a DiLoCoJob is made of, nor why something is applied.
"""
