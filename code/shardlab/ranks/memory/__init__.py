"""Ways to need less memory on one device. Each file is one method and stands alone, but for `homes`.

`precision` computes in 16 bits, `recompute` forgets activations and computes them again, and `offload` keeps parameters
in the host's memory, in `homes`.
"""
