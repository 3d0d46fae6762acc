"""Record what ranks do, and find what went wrong.

`ledger` records what a rank sends and computes, and uses `trace`, `flops` and `sockets`.
`saved_tensors` counts what autograd keeps for backward, `diagnose` finds the rank and the tensor
that went wrong, and `torchrun` why a start failed; each of these three stands alone.
"""
