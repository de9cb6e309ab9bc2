"""`leveret ctl`: RabbitMQ's commands for a running broker, over its management API.

Theory. A command asks the API, over the socket in the data directory or over HTTP, and prints what RabbitMQ's tool of
that name prints: scripts depend on columns, formatters and exit codes. Commands are functions of a `session.Session`,
registered by `command.command` with RabbitMQ's names for their arguments.
"""
