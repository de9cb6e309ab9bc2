"""What the broker writes down for later: rows of what it has done, in tables that are declared here."""
