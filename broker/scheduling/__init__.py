"""The work of a turn of the event loop, time slices and timers."""
