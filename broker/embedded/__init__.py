"""The broker as a library: in memory or on a directory, in the application's event loop or in a thread (drivers)."""
