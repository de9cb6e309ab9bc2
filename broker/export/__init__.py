"""Telemetry export: rows about the broker's activity as JSON Lines, in the tables declared here."""
