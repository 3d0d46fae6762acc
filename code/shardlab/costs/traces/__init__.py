"""Traces, predicted: what ranks did or would do, played on any cluster.

Read `writing` first, which writes the traces of runs that nobody made, then `replay`, which plays
them, with `matching` (sends with receives), `transfers` (what each one puts on the wires) and
`sharing` (how transfers share a hop). `traffic`, `crossings`, `knee` and `waiting` answer questions with them;
`costs.step.trace` writes whole steps.
"""
