"""What a model is, in numbers: `spec` has its sizes, `attention` and `experts` the variants, and
`details` what changes no size.

`ranks.transformer` is the same model in torch, `costs.facts.models` has published ones.
"""
