"""Prometheus metrics and health over HTTP, named as in RabbitMQ's Prometheus plugin, from existing counters."""
