"""The server, which owns everything, and what it does beside serving (drivers)."""
