"""How far two ways to compute the same float64 tensors may be apart."""

EXACT = {"rtol": 0, "atol": 1e-12}  # for torch.testing.assert_close
