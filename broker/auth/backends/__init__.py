"""Backends of authentication and authorisation: the internal database, an HTTP service, tokens, and a cache of them."""
