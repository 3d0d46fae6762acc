"""Layouts that others tried, as tables: which ran, and which ran out of memory. `fits` reads them.

- Hagemann et al. 2023 (https://arxiv.org/abs/2311.05610), data in
  https://github.com/Aleph-Alpha/NeurIPS-WANT-submission-efficient-parallelization-layouts
- Tazi et al. 2025, The Ultra-Scale Playbook, its benchmark on one node; "crashed" counts as OOM
  (https://huggingface.co/spaces/nanotron/ultrascale-playbook)
- llm-foundry
  (https://github.com/mosaicml/llm-foundry/blob/main/scripts/train/benchmarking/README.md)
- BigScience, before it trained BLOOM, runs of 25 February 2022 (train/tr11-176B-ml/
  chronicles-prequel.md in https://github.com/bigscience-workshop/bigscience)
"""

OOM = "OOM"  # "-": not tried
# kernels, tp, pp, recomputation, sequence parallelism; then seconds of a step with microbatches of
# 1, 2, 4 and 8 sequences. LLaMA 13B and 30B, 2,048 tokens, 64 A100, batch 2,048.
LLAMA_13B = """
flash1 1 1 full 0  44.4 43.9 43.1 OOM
flash1 1 1 none 0  OOM OOM OOM OOM
flash1 1 2 full 0  42.4 42.3 42.5 44.7
flash1 1 2 none 0  33.6 OOM OOM OOM
flash1 2 1 full 0  50.0 47.5 47.1 OOM
flash1 2 1 none 0  40.6 41.8 OOM OOM
flash1 2 2 full 0  53.5 51.4 49.8 50.2
flash1 2 2 none 0  40.2 37.7 OOM OOM
flash2 1 1 full 0  37.5 36.7 36.7 -
flash2 1 1 none 0  OOM OOM OOM -
flash2 1 2 full 0  44.1 47.4 55.6 72.8
flash2 1 2 none 0  33.7 38.3 OOM OOM
flash2 2 1 full 0  47.1 44.4 44.1 43.2
flash2 2 1 none 0  35.5 33.9 OOM OOM
flash2 2 2 none 0  39.6 39.8 OOM OOM
flash2 2 2 full 0  - 53.6 56.6 65.5
flash2+rms 1 1 none 0  26.5 OOM OOM OOM
flash2+rms 1 2 none 0  31.1 33.1 OOM OOM
flash2+rms 2 1 none 0  31.3 29.7 OOM OOM
flash2+rms 2 2 none 0  34.8 35.0 37.6 OOM
fused 1 1 full 0  48.9 49.4 47.8 OOM
fused 1 1 none 0  OOM OOM OOM OOM
fused 1 2 full 0  48.0 46.9 47.2 OOM
fused 1 2 none 0  OOM OOM OOM OOM
fused 2 1 full 0  57.3 54.4 51.8 OOM
fused 2 1 none 0  46.0 OOM OOM OOM
fused 2 2 full 0  58.9 54.6 55.1 OOM
fused 2 2 none 0  43.4 OOM OOM OOM
torch 1 1 full 0  56.0 57.1 OOM OOM
torch 1 1 none 0  OOM OOM OOM OOM
torch 1 2 full 0  54.2 56.2 55.4 OOM
torch 1 2 none 0  OOM OOM OOM OOM
torch 2 1 full 0  62.6 60.8 60.2 OOM
torch 2 1 none 0  52.5 OOM OOM OOM
torch 2 2 full 0  65.2 62.7 63.3 OOM
torch 2 2 none 0  49.4 OOM OOM OOM
"""
LLAMA_30B = """
flash2+rms 1 1 none 0  - - OOM
flash2+rms 1 1 none 1  - - OOM
flash2+rms 1 2 none 0  OOM OOM OOM
flash2+rms 1 2 none 1  OOM OOM OOM
flash2+rms 1 4 none 0  72.0 OOM OOM
flash2+rms 1 4 none 1  72.6 OOM OOM
flash2+rms 2 1 none 0  - - OOM
flash2+rms 2 1 none 1  - - OOM
flash2+rms 2 2 none 0  80.2 OOM OOM
flash2+rms 2 2 none 1  76.8 OOM OOM
flash2+rms 2 4 none 0  78.4 74.9 OOM
flash2+rms 2 4 none 1  76.6 72.7 OOM
flash2+rms 4 1 none 0  94.1 OOM OOM
flash2+rms 4 1 none 1  89.3 85.2 OOM
flash2+rms 4 2 none 0  89.9 84.9 OOM
flash2+rms 4 2 none 1  85.5 81.1 83.1
flash2+rms 4 4 none 0  95.5 89.8 86.4
flash2+rms 4 4 none 1  87.7 82.2 77.6
"""
# tp, pp, dp, ZeRO; then microbatch:peak in GiB:seconds. 8B, 4,096 tokens, 8 H100, batch 256.
PLAYBOOK = """
1 1 8 0  1:OOM
1 1 8 1  1:OOM
1 2 4 0  1:OOM
1 2 4 1  1:71.5:47.6 2:OOM 4:OOM 8:OOM 16:OOM 32:OOM 64:OOM
1 4 2 0  1:OOM
1 4 2 1  1:63.1:17.5 2:OOM 4:OOM 8:OOM 16:OOM 32:OOM
1 8 1 0  1:62.5:19.3 8:OOM 16:OOM 32:OOM 64:OOM 128:OOM 256:OOM
2 1 4 0  1:OOM
2 1 4 1  1:65.2:18.4 2:OOM
2 2 2 0  1:63.6:19.4
2 2 2 1  1:53.7:19.4 2:62.6:18.7 4:OOM 8:OOM 16:OOM 32:OOM 64:OOM 128:OOM
2 4 1 0  1:40.9:19.6 8:OOM 16:OOM 32:OOM 64:OOM 128:OOM 256:OOM
4 1 2 0  1:51.4:20.9 4:OOM
4 1 2 1  1:36.1:21.0
4 2 1 0  1:30.8:22.3 8:OOM 16:OOM 32:OOM 64:OOM 128:OOM 256:OOM
8 1 1 0  1:24.4:36.2 8:60.1:22.2 16:OOM 32:OOM 64:OOM 128:OOM 256:OOM
"""
# model, recomputation, GPUs; then sequence:microbatch:microbatches of a step:tokens/s of one GPU.
# All of them ran. A100s with 80 GB.
FOUNDRY = """
70b full 64  2048:8:4:410
70b full 32  2048:2:16:373
30b full 8  8192:1:21:574 4096:1:21:814 2048:3:21:916 1024:6:21:946 512:12:21:967
13b full 8  32768:1:3:1016 16384:3:3:1431 8192:5:3:1795 4096:10:3:2060 1024:40:3:2330
13b none 8  2048:2:3:2262
7b full 8  65536:1:2:1013 32768:2:2:1672 16384:4:2:2453 8192:8:2:3206 4096:16:2:3684
7b full 8  1024:64:2:4357
7b none 8  2048:6:2:4641
3b full 8  65536:1:2:1767 32768:3:6:3029
3b none 8  16384:1:6:5529 8192:3:6:7695 4096:5:6:9457 2048:10:2:10811 1024:20:6:11580
3b none 8  512:40:6:12127
1b full 8  65536:1:2:3044
1b none 8  32768:1:4:6275 16384:2:4:9956 8192:3:4:13814 4096:7:4:17807 2048:14:4:20513
1b none 8  1024:18:4:22112 512:56:4:23148
760m full 8  65536:1:2:4143
760m none 8  32768:1:2:8802 16384:3:2:14274 8192:6:2:20933 4096:12:2:27351 2048:24:2:32434
760m none 8  1024:48:2:29765 512:96:2:29446
350m none 8  65536:1:2:7524 32768:2:2:13652 16384:4:2:23559 8192:8:2:36569 4096:16:2:49555
350m none 8  2048:32:2:58782 1024:64:2:64813 512:128:2:69330
125m none 8  65536:1:2:20368 32768:2:2:36407 16384:4:2:60040 8192:8:2:90392 4096:16:2:118396
125m none 8  2048:40:2:142830 2048:32:2:141737 1024:64:2:156468 512:128:2:165681
"""
MPT = {  # layers, width, heads
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16),
    "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}  # fmt: skip
# tp, pp, dp; then microbatch:seconds. 181B of 72 layers, 2,048 tokens, 384 A100, ZeRO-1, batch
# 2,048 or, where dp does not divide it, 2,016.
JEAN_ZAY = """
8 6 8  4:114.11
8 12 4  2:128.82 4:117.07
8 8 6  4:113.16
8 4 12  2:125.52 4:114.81
8 2 24  1:145.45 2:136.13
8 1 48  1:OOM
4 12 8  2:110.48 4:111.89
4 6 16  2:111.71 4:117.11
2 12 16  2:112.50
2 6 32  1:OOM 2:OOM
2 24 8  1:119.53 2:122.75
4 24 4  1:130.60
"""
