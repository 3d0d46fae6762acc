"""Traces, predicted: what ranks did or would do, played on any cluster.

Read `programs` first, which writes programs that nobody ran, then `replay`, which plays them, with
`matching` (sends with receives), `transfers` (what each one puts on the wires) and `sharing` (how
transfers share a hop). `traffic`, `crossings`, `knee` and `waiting` answer questions with them;
`costs.step.program` writes whole steps.
"""
