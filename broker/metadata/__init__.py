"""Durable topology, users and parameters: recorded in the journal, restored at the start."""
