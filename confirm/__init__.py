"""Publisher confirms: modes, sequence numbers of channels, consumer acks, timeouts and deadlock detection."""
