"""How large models are trained on many GPUs: reference implementations, with their costs."""
