"""What the fleet holds, as columns: the key directory and the blend index."""
