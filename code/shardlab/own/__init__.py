"""Your own run beside the book's numbers: read what profilers and benchmarks of a cluster write.

`stream` reads the events of a large file piece by piece. `recording` is what all readers of runs
return; `kineto` reads torch's profiler, and `flight` the dumps of torch's flight recorder.
`nccl_tests` turns the tables of nccl-tests and rccl-tests into a cluster's file.
`report` puts a recording beside predictions, and `text` prints it.
"""
