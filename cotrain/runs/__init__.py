"""A run is a folder: its settings, split, log, checkpoints, model and result, written whole and read strictly."""
