"""Users and their permissions, passwords, patterns of names, and the delay of failed logins."""
