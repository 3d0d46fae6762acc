"""What ranks do, seen from outside. Each file stands alone, but for the first one.

`ledger` records what a rank sends and computes, with `program`, `flops` and `sockets`; `saved_tensors` counts what
backward keeps; `diagnose` finds the rank and the tensor that went wrong.
"""
