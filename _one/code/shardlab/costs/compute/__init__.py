"""Compute, predicted. Read `flops` first, then `roofline`, `time_to_train` and `scaling_laws`."""
