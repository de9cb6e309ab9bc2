"""Queues: consumers, arguments, settings, limits and expiry."""
