"""What holds the state: source -> gate -> broadcaster -> views."""
