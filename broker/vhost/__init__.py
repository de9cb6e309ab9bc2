"""A virtual host: publish routes, policies, parameters, dead-lettering and delayed messages."""
