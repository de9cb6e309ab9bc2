"""The client's side of an AMQP 0-9-1 connection: URIs, handshake, calls; for the load tool and for shovels."""
