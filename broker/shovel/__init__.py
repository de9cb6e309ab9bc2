"""Shovels: messages moved from a queue to an exchange or queue, of this broker or others, as RabbitMQ's plugin does."""
