"""The log of a broker in an engine that is replicated already: state machines, and drivers (docs/adr/0044)."""
