"""Your own run beside the book's numbers: read what profilers and benchmarks of a cluster write.

`stream` reads the events of a large file piece by piece. `recording` is what all readers of runs
return; `kineto` reads torch's profiler, `flight` the dumps of torch's flight recorder, and
`nccl_tests` the tables of nccl-tests and rccl-tests, which `rates` turns into a cluster's file.
`report` puts a recording beside predictions, and `text` prints it.
"""
