"""Check a machine, or all machines of a run, in a minute before it starts, from a shell.

    python -m shardlab.preflight                     # this machine
    torchrun --nnodes 2 ... -m shardlab.preflight   # all ranks of a run

`facts` collects what a rank knows of itself. Ranks announce themselves in a store (`roll`), so that
those who do not come can be named. `measure` times clocks and links. The checks are pure functions
from the facts of all ranks to results: `who` is here and with what, what is `alike`, and what lies
`between` ranks. `together` runs them on all ranks.

A starter that waits for a machine before it starts any rank, as torchrun does, ends by itself: a
rank can only name another one if it has been started.
"""
