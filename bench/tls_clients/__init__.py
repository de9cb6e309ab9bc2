"""Clients in other languages over TLS: `make bench NAME=tls_clients`."""
