"""Processes for virtual hosts: a front that logs clients in, and brokers that have the virtual hosts."""
