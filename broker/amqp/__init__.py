"""The AMQP 0-9-1 wire format, without input or output: the only package that knows pamqp."""
