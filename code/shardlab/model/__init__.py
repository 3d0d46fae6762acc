"""What a model is, in numbers: `spec` has its sizes, `attention` and `experts` the variants.

`ranks.transformer` is the same model in torch, `costs.facts.models` has published ones.
"""
