"""`cotrain label`: the page that labels images while a model learns."""
