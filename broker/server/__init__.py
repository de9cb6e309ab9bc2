"""The server, which owns all other objects, and its background tasks (drivers)."""
