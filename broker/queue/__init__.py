"""A queue: consumers, arguments, settings, limits and expiry."""
