"""Files that the package reads or writes for its reader.

`project` finds the project's own, `measured` shows what the benches wrote, `reading` has the
minutes of a page, `imports` lists the files of a module, and `take` copies them; `given` reads
what a reader gives, `described` a model or a cluster in it, `writing` makes a folder whole or not
at all, `arguments` refuses what a function cannot take, and `learner` keeps a learner's records.
"""
