"""The only package that talks to an API server. Objects are plain dicts on both sides of it.

The typed models of kubernetes 37 refuse unknown fields, and its informer polls a dead server without a pause, requests
no bookmarks and needs one thread per kind. So only the transport of its asyncio client is used (addresses, TLS, tokens
and their renewal, exec plugins); requests, lists and watches are a few small functions here.
"""
