"""Solutions of the exercises on computing."""


def my_days_to_train(num_parameters, tokens, num_chips, reached, recomputes):
    flops = (8 if recomputes else 6) * num_parameters * tokens
    return flops / (num_chips * reached) / 86_400


def my_layer_flops(batch, sequence, hidden, kv_hidden, ffn, gated):
    tokens = batch * sequence
    return {
        "projections": 2 * tokens * hidden * (2 * hidden + 2 * kv_hidden),
        "scores": 2 * 2 * batch * sequence * sequence * hidden,
        "feed-forward": 2 * tokens * hidden * ffn * (3 if gated else 2),
    }


def my_attainable(m, k, n, peak, bandwidth, element):
    flops = 2 * m * k * n
    nbytes = element * (m * k + k * n + m * n)
    return min(peak, flops / nbytes * bandwidth)
