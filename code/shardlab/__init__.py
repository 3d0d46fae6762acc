"""How large models are trained on many GPUs, in code that runs. `from shardlab.ranks import comm`."""
