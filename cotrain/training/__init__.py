"""The training loop and what it needs: state, optimisers, processes."""
