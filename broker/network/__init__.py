"""Listening and connected sockets (drivers)."""
