"""What may be wrong with the data: images of no class, near-duplicates, labels that are disputed, class shares."""
