"""The broker's own process: memory and disk alarms, allocator, garbage collector, logs, systemd."""
