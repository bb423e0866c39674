"""How long a training step takes, next to its parts and to other implementations."""
