"""Write known collectives as each version of a profiler would, so that the right answer of a reader is known."""

import json

from shardlab.costs.published import recorded_step

BASE = 1_790_857_026_000_000_000
NAMES = {"all_reduce": "AllReduce", "all_gather": "AllGather", "reduce_scatter": "ReduceScatter"}
NAMES |= {"all_to_all": "SendRecv"}


def span(name, cat, start, dur, tid=1, **args):
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": tid, "ts": start, "dur": dur, "args": args}


def kineto(dialect, rank, calls, *, world=2, kernels=(), step=None):
    """One rank's trace. calls: (op, bytes of float, start us, duration us); kernels: (name, start us, duration us)."""
    spans = [span(name, "kernel", start, dur) for name, start, dur in kernels]
    for i, (op, nbytes, start, dur) in enumerate(calls):
        kernel = f"ncclDevKernel_{NAMES[op]}_Sum_f32_RING_LL"
        known = {"Collective name": op.replace("_r", "r").replace("_g", "g"), "In msg nelems": nbytes // 4}
        known |= {"Out msg nelems": 1, "dtype": "Float", "Group size": world, "Process Group Name": "0"}
        known |= {"Process Group Ranks": str(list(range(world)))}
        shapes = {"Input Dims": [[nbytes // 4], []], "Input type": ["float", ""]}
        launch = span("cudaLaunchKernel", "cuda_runtime", start - 5, 1, 7, correlation=i)
        if dialect == "2.2":
            spans.append(span(kernel, "kernel", start, dur, **known))
        elif dialect == "2.4":
            spans.append(span("record_param_comms", "cpu_op", start - 9, 5, 7, **{"External id": i}, **known))
            spans.append(span(kernel, "kernel", start, dur, **{"External id": i}))
        elif dialect == "2026":
            spans.insert(0, span(kernel, "kernel", start, dur, Seq=i, **known))
        elif dialect == "2.1":
            around = span("record_param_comms", "cpu_op", start - 9, 5, 7, **shapes)
            spans += [around, launch, span(kernel, "kernel", start, dur, correlation=i)]
        elif dialect == "ROCm":
            spans += [launch, span(kernel.replace("Dev", ""), "kernel", start, dur, correlation=i)]
        elif dialect == "gloo":
            spans.append(span(f"c10d::{op.replace('_', '')}_", "cpu_op", start, 1, **shapes))
            run = "all_reduce" if op == "reduce_scatter" else op
            spans.append(span(f"gloo:{run}", "user_annotation", start + 1, dur - 1, 9, **shapes))
    if step is not None:
        name, begin, dur = step
        spans.append(span(f"ProfilerStep#{name}", "user_annotation", begin, dur))
    info = {"rank": rank, "world_size": world, "pg_count": 1}
    return {"schemaVersion": 1, "distributedInfo": info, "baseTimeNanoseconds": BASE, "traceEvents": spans}


def files(folder, traces):
    """Write the traces of all ranks; return their paths."""
    paths = [folder / f"trace{i}.json" for i in range(len(traces))]
    for path, trace in zip(paths, traces, strict=True):
        path.write_text(trace if isinstance(trace, str) else json.dumps(trace))
    return paths


def dlrm():
    """The traces of all ranks of the published step, with other kernels right before each collective, without sizes."""
    traces = []
    for rank in range(8):
        mine = [
            (call.op, *(round(1e6 * each[rank]) for each in (call.starts, call.lasts, call.computing)))
            for call in recorded_step.DLRM
        ]
        calls = [(op, 0, start, lasts) for op, start, lasts, _ in mine]
        kernels = [("elementwise", start - busy, busy) for _, start, _, busy in mine if busy]
        traces.append(kineto("2.1", rank, calls, world=8, kernels=kernels))
    return traces
