"""An engine in another process: client, connection and wire format."""
