"""What monitoring reads over HTTP: numbers that are there anyway, in the words of RabbitMQ's Prometheus plugin."""
