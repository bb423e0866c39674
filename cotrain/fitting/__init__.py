"""`cotrain fit`: from data to a finished run, with its baselines, cross-validation and findings."""
