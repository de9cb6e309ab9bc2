"""The metadata store: durable topology, users and parameters, recorded in the journal and restored at the start."""
