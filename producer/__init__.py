"""What runs inside a cache server: the event contract, the wire, the emitter and its sinks."""
