"""The faces: HTTP server, HTTP client, command line, and the one place that wires everything."""
