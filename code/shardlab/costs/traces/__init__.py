"""Traces, predicted: what ranks did or would do, played on any cluster.

Read `programs` first, which writes programs that nobody ran, then `replay`, which plays them, with `matching` (who
meets whom), `transfers` and `sharing` (who shares a hop). `traffic`, `crossings`, `placement`, `knee` and `waiting` are
questions that a replay answers.
"""
