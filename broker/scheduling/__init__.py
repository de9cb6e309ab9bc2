"""The work of a turn of the event loop, the context of a node, time slices and timers."""
