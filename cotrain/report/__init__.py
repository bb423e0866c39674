"""The page, the card and the figures of a run."""
