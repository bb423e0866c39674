"""A trained model on new images: predictions, streaming jobs, their tables, ONNX."""
