"""Keeping the state on disk and bringing it back."""
