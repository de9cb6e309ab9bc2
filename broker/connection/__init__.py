"""A connection: handshake, receive loop, methods of its own, flow control."""
