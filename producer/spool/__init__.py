"""What waits on disk for the broker: records in a bounded queue of segment files."""
