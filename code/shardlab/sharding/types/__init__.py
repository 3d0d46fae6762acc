"""Sharding types: read `states`, `redistribution`, `rules`, `tracer`, then `methods` and `bugs`.

A type says what each rank holds of a tensor, and thereby what each rank holds of its gradient. One
text of a method is read by a `Tracer`, which derives the types and refuses a line that would be
wrong, and by `ranks.players`, which computes what every rank of a small mesh would hold.
`mutants` makes methods wrong, to see what is refused, and `advice` makes texts right.
"""
