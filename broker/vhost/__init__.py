"""A virtual host: routes of publishes, policies, parameters, dead letters, delayed messages."""
