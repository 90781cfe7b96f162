"""The demo: a fleet of cache servers, a broker and a processor on one machine, every answer checked."""
