"""Files: written whole, read strictly, and the folder where everything is kept that can be computed again."""
