"""The command `leveret ctl`: RabbitMQ's commands for a running broker, over its management API.

Theory. A command asks the API, over the socket in the data directory or over HTTP, and prints what RabbitMQ's tool of
that name prints: scripts depend on columns, formatters and exit codes. A command is a function of a `command.Session`
that `command.command` declares: the names of the function and of its parameters are RabbitMQ's.
"""
