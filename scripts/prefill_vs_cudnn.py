#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Prompt attention and importance beside cuDNN's attention, on one GPU and in one run.

  scripts/prefill_vs_cudnn.py BENCH [--shapes 1x4096 ...] [--rounds 3] [--out FILE]

BENCH is diffkv_device_bench (bench/prefill_device_bench.cu). Needs PyTorch with cuDNN. GPUs slow down
as they get warm, so the two alternate: in each round, each has a rest and then its turn with the same
shape (f16, 32 q_heads over 8 heads, head_dim 128, causal). Both are timed in the same way, as
bench/graph_time.hpp does: a CUDA graph of 3 n operations less one of n. Medians over the rounds.

FILE is what `scripts/performance.py store` takes. Its figures, SHAPE being PROMPTSxTOKENS:
  prefill.over_cudnn.SHAPE                    time of prefill_attention / time of cuDNN
  prefill.importance_over_cudnn.KIND.SHAPE    add_importance and finish_importance / the same; KIND is
                                              all, last64, every8 or every16
"""
import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

SHAPES = ["1x1024", "1x2048", "1x4096", "4x4096", "1x8192", "1x32768"]
KINDS = ["all", "last64", "every8", "every16"]
Q_HEADS, HEADS, HEAD_DIM = 32, 8, 128


class Cudnn:
    """cuDNN's attention over prompts of one shape."""

    def __init__(self, prompts, tokens):
        def random(heads):
            x = torch.randn(prompts, tokens, heads, HEAD_DIM, device="cuda", dtype=torch.float16)
            return x.transpose(1, 2)

        self.inputs = [random(Q_HEADS), random(HEADS), random(HEADS)]
        is_long = prompts * tokens * tokens > 3e8
        self.count, self.replays = (1, 3) if is_long else (4, 9)
        for _ in range(3):
            self.attend()
        torch.cuda.synchronize()
        self.few, self.many = self.graph(self.count), self.graph(3 * self.count)

    def attend(self):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(
                *self.inputs, is_causal=True, enable_gqa=True)

    def graph(self, count):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                self.attend()
        return graph

    @staticmethod
    def replay_us(graph):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        return 1e3 * begin.elapsed_time(end)

    def us(self):
        pairs = [(self.replay_us(self.few), self.replay_us(self.many))
                 for _ in range(self.replays + 3)][3:]
        few, many = (statistics.median(times) for times in zip(*pairs))
        return (many - few) / (2 * self.count)


def ours(bench, shape):
    """{"attention" or a kind of importance: us} as the bench says, which also checks the answers."""
    prompts, tokens = shape.split("x")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        done = subprocess.run(
            [bench, f"--benchmark_filter=^(attention|importance/.*)/prompts:{prompts}/tokens:{tokens}/",
             f"--benchmark_out={out}", "--benchmark_out_format=json"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            sys.exit(done.stdout)
        entries = json.loads(out.read_text())["benchmarks"]
    figures = {key: value for entry in entries for key, value in entry.items()
               if key.startswith("figure:")}
    names = {"attention": "attention_us", **{kind: f"importance.{kind}_us" for kind in KINDS}}
    try:
        return {what: figures[f"figure:prefill.{name}.{shape}"] for what, name in names.items()}
    except KeyError as missing:
        sys.exit(f"{bench} gives no {missing} for {shape}:\n{done.stdout}")


def compare(bench, shape, rounds, rest):
    """{what: median us over the rounds}"""
    times = {}
    cudnn = Cudnn(*map(int, shape.split("x")))
    for _ in range(rounds):
        time.sleep(rest)
        times.setdefault("cudnn", []).append(cudnn.us())
        time.sleep(rest)
        for what, us in ours(bench, shape).items():
            times.setdefault(what, []).append(us)
    spread = ", ".join(f"{what} {min(t):.1f}..{max(t):.1f}" for what, t in times.items())
    print(f"{shape}: us {spread}", file=sys.stderr, flush=True)
    return {what: statistics.median(t) for what, t in times.items()}


def entry_of(shape, us):
    name = f"prefill_vs_cudnn/{shape}"
    figures = {f"figure:prefill.over_cudnn.{shape}": us["attention"] / us["cudnn"]}
    figures.update({f"figure:prefill.importance_over_cudnn.{kind}.{shape}": us[kind] / us["cudnn"]
                    for kind in KINDS})
    return {"name": name, "run_name": name, "run_type": "iteration", "iterations": 1,
            "real_time": us["attention"], "cpu_time": us["attention"], "time_unit": "us",
            "cudnn_us": us["cudnn"], **{f"{kind}_us": us[kind] for kind in KINDS}, **figures}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", type=Path)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="PROMPTSxTOKENS")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rest", type=float, default=1.0, help="seconds before each turn")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    options = parser.parse_args()
    entries = []
    for shape in options.shapes:
        us = compare(options.bench.resolve(), shape, options.rounds, options.rest)
        entries.append(entry_of(shape, us))
        shares = "  ".join(f"{what} {us[what]:.1f} us ({us[what] / us['cudnn']:.3f})"
                           for what in ["attention", *KINDS])
        print(f"{shape}: cudnn {us['cudnn']:.1f} us  {shares}", flush=True)
    if options.out:
        document = {"context": {"executable": str(options.bench),
                                "device": torch.cuda.get_device_name(0),
                                "cudnn": torch.backends.cudnn.version(), "torch": torch.__version__},
                    "benchmarks": entries}
        options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
