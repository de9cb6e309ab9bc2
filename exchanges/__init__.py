"""Routing: exchanges, bindings and the graph they form, from a routing key to opaque destinations."""
