"""The AMQP 0-9-1 wire format, without I/O; the only package that imports pamqp."""
