"""Users and permissions, password hashes, name patterns, and throttling of failed logins."""
