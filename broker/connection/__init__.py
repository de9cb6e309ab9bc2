"""AMQP connections: handshake, receive loop, connection methods and flow control."""
