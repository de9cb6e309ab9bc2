"""TLS: options, contexts, certificates, and what is known of a peer."""
