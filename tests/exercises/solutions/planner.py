"""Solutions of the exercises on planning."""


def my_step_seconds(layers_per_stage, num_stages, layer, head, num_microbatches):
    stage = layers_per_stage * layer
    slowest = stage + head
    return num_microbatches * slowest + (num_stages - 1) * stage


def my_layouts(gpus, gpus_per_node, heads, layers, batch):
    found = []
    for tp in range(1, gpus_per_node + 1):
        if heads % tp or gpus_per_node % tp or gpus % tp:
            continue
        for pp in range(1, layers + 1):
            if layers % pp == 0 and gpus // tp % pp == 0 and batch % (gpus // (tp * pp)) == 0:
                found.append((tp, pp, gpus // (tp * pp)))
    return found


def my_choose(plans, memory):
    fits = [plan for plan in plans if plan[2] <= memory]
    if fits:
        return min(fits, key=lambda plan: plan[1])[0], 0
    name, _, nbytes = min(plans, key=lambda plan: plan[2])
    return name, nbytes - memory
