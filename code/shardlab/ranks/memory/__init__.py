"""Use less memory on one device. Each method is one file and stands alone.

`precision` computes in 16 bits, `recompute` drops activations and computes them again, and
`offload` keeps parameters in the host's memory, with the host's side in `hosted`. `hollow` builds
a model without numbers, of which a rank makes only its part.
"""
