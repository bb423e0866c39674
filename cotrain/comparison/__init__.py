"""Many runs under one protocol: comparisons of methods, and the machinery of the paper's studies."""
