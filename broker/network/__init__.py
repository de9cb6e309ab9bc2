"""Network drivers: listening and connected sockets."""
