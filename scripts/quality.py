#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Measures what compression costs in quality, on a real model and a real text.

  scripts/quality.py --text wiki.test.raw          the table below, over four places of the text
  scripts/quality.py --text FILE --only NAME ...   some rows of it; prints, stores nothing

Each row runs `diffkv_llama3 --device cpu --raw --prompt-tokens 1024 --compare 192` at `--skip` 0, 5000,
20000 and 40000 and averages. The figures in docs/performance.md are of the WikiText-2 test text ("raw", as
published by Merity et al., 2016). The result is stored as docs/performance/quality.json, in the form
of Google Benchmark, rendered by scripts/performance.py and into the table of README.md.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPS = [0, 5000, 20000, 40000]
KEEP_ALL = ["--threshold-high", "0", "--threshold-low", "0"]
ROWS = {
    "k8v8": ["--high", "k8v8", "--low", "none", *KEEP_ALL],
    "k8v4": ["--high", "k8v4", "--low", "none", *KEEP_ALL],
    "k8v4_unconditioned": ["--high", "k8v4", "--low", "none", "--conditioning", "none", *KEEP_ALL],
    "k4v8_unconditioned": ["--high", "k4v8", "--low", "none", "--conditioning", "none", *KEEP_ALL],
    "paper_0.25": ["--policy", "paper", "--threshold-high", "0.25"],
    "relative_2": [],
    "relative_4": ["--threshold-high", "4"],
    "paper_1_0.02_unconditioned": ["--policy", "paper", "--threshold-high", "1", "--threshold-low",
                                   "0.02", "--conditioning", "none", "--score-every", "1"],
}
ABOUT = {
    "k8v8": "K8V8", "k8v4": "K8V4", "k8v4_unconditioned": "K8V4, not conditioned",
    "k4v8_unconditioned": "K4V8, not conditioned: the same bytes, spent on values",
    "paper_0.25": "K8V4 + K4V2, `paper` 0.25 / 0", "relative_2": "K8V4 + K4V2, `relative` 2 / 0 (default)",
    "relative_4": "K8V4 + K4V2, `relative` 4 / 0",
    "paper_1_0.02_unconditioned": "the paper's settings for an 8B model: `paper` 1 / 0.02, not conditioned",
}
README_BEGIN, README_END = "<!-- quality:begin -->", "<!-- quality:end -->"
COUNTERS = {"kl": "kl", "agreement": "agreement", "perplexity_ratio": "perplexity_ratio",
            "kv_bytes_ratio": "kv_bytes_ratio", "nominal_bytes_ratio": "nominal_bytes_ratio"}


def run_row(program, model, text, arguments):
    """Means over the places of the text, and the seconds that they took."""
    began = time.monotonic()
    reports = []
    for skip in SKIPS:
        command = [program, "--device", "cpu", "--model", model, "--raw", "--prompt-file", text, "--prompt-tokens", "1024",
                   "--compare", "192", "--skip", str(skip), "--report", "json", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stderr}")
        reports.append(json.loads(done.stdout.splitlines()[-1]))
    means = {name: sum(r[key] for r in reports) / len(reports) for name, key in COUNTERS.items()}
    return means, time.monotonic() - began


def readme_table(document):
    lines = ["| cache | KV bytes | KL, nats | same most likely token | perplexity |", "|---|---|---|---|---|"]
    for entry in document["benchmarks"]:
        name = entry["name"]
        value = {key: entry[f"figure:quality.{name}.{key}"] for key in COUNTERS}
        lines.append(f"| {ABOUT[name]} | {100 * value['kv_bytes_ratio']:.1f} % | {value['kl']:.4f} | "
                     f"{100 * value['agreement']:.1f} % | x {value['perplexity_ratio']:.3f} |")
    return "\n".join(lines)


def render_readme():
    """Puts the stored figures into README.md."""
    document = json.loads((ROOT / "docs/performance/quality.json").read_text())
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(README_BEGIN)
    after = rest.split(README_END)[1]
    readme.write_text(f"{before}{README_BEGIN}\n{readme_table(document)}\n{README_END}{after}")


def git(*arguments):
    return subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, text=True,
                          check=True).stdout.strip()


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown processor"


def main():
    models = Path(os.environ.get("DIFFKV_MODELS", ROOT / "build" / "models"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, required=True, help="plain text, at least 42,000 tokens")
    parser.add_argument("--model", type=Path, default=models / "SmolLM2-135M-Instruct")
    parser.add_argument("--program", type=Path,
                        default=ROOT / "build/demo/examples/llama3/diffkv_llama3",
                        help="built by scripts/demo.sh")
    parser.add_argument("--only", nargs="+", choices=ROWS, metavar="NAME", help=", ".join(ROWS))
    options = parser.parse_args()
    for path in [options.text, options.model, options.program]:
        if not path.exists():
            sys.exit(f"{path} does not exist; scripts/demo.sh makes program and model")

    commit = git("rev-parse", "--short=12", "HEAD")
    entries = []
    for name in options.only or ROWS:
        means, seconds = run_row(options.program, options.model, options.text, ROWS[name])
        print(f"{name:28} KL {means['kl']:.5f}  agreement {means['agreement']:.4f}  "
              f"perplexity x{means['perplexity_ratio']:.4f}  KV bytes {means['kv_bytes_ratio']:.4f}",
              flush=True)
        entries.append({"name": name, "run_name": name, "run_type": "iteration", "iterations": 1,
                        "real_time": seconds, "cpu_time": seconds, "time_unit": "s",
                        **{f"figure:quality.{name}.{key}": value for key, value in means.items()}})
    if options.only:
        return
    target = ROOT / "docs/performance/quality.json"
    document = {"context": {"device": processor(), "commit": commit,
                            "command": f"scripts/quality.py --text {options.text.name}",
                            "model": options.model.name},
                "benchmarks": entries}
    target.write_text(json.dumps(document, indent=1) + "\n")
    render_readme()
    subprocess.run([sys.executable, ROOT / "scripts/performance.py"], check=True)


if __name__ == "__main__":
    main()
