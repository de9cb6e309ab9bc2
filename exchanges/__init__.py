"""Routing: exchanges and bindings of a vhost, from a routing key to opaque destinations."""
