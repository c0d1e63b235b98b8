#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Keeps the measured figures of diffkv.

  scripts/performance.py run      builds and runs the host benches and stores what they say as
                                  docs/performance/host.json, then renders
  scripts/performance.py store FILE ...
                                  stores what a bench wrote elsewhere (--benchmark_out, JSON; of
                                  several files as one), then renders; needs --name, --device and
                                  --command. diffkv_llama3_throughput --out writes the same form
  scripts/performance.py counters CASE=FILE ...
                                  stores counters of decode attention (FILE: output of ncu --csv; CASE:
                                  as in attention_once/CASE), then renders; needs the same. The
                                  command of ncu is in docs/performance.md
  scripts/performance.py          renders: docs/performance/*.json -> the tables in
                                  docs/performance.md, docs/performance/figures.json, and a plot
                                  docs/performance/NAME.svg for each file
  scripts/performance.py --check  fails if rendering would change anything

Each file is Google Benchmark's own JSON. `context` also holds `device`, `commit` and `command`: a
figure without them is not taken. A bench for a GPU sets them itself (AddCustomContext), or
`run --binary PROGRAM --name NAME --device DEVICE` does.

Names of figures (figures.json is one flat map from name to number):
  NAME/BENCHMARK/COUNTER   for every counter of every benchmark in NAME.json, with `real_time_s`,
                           `cpu_time_s`, `bytes_per_second` and `items_per_second` among them; the
                           benchmark by its run name, without Google Benchmark's own suffixes. Where
                           there are repetitions it is their median.
  FIGURE                   for a counter called `figure:FIGURE`: how a bench gives a name of its own
                           to a figure that others rely on. Shares and ratios are fractions.
"""
import argparse
import html
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import attention_page

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- performance:begin -->", "<!-- performance:end -->"
# Files beside the stored ones that no benchmark wrote.
FIGURES, PUBLIC, COUNTERS = "figures.json", "public_kernels.json", "ncu_attention.json"
SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
SUFFIXES = re.compile(r"/(real_time|manual_time|process_time|repeats:\d+|iterations:\d+|"
                      r"min_time:[\d.]+|min_warmup_time:[\d.]+|threads:1)(?=/|$)")
# Keys of a benchmark's entry that are not counters.
NO_COUNTERS = {
    "family_index", "per_family_instance_index", "repetitions", "repetition_index", "threads",
    "iterations", "real_time", "cpu_time",
}


class Refused(Exception):
    """The stored figures cannot be used as they are; the message says why."""


def measurements(document):
    """{run name: {counter: value}}, medians where there are repetitions."""
    single, medians = {}, {}
    for entry in document["benchmarks"]:
        if entry.get("error_occurred"):
            raise Refused(f"{entry['name']} failed: {entry.get('error_message', '')}")
        name = SUFFIXES.sub("", entry["run_name"])
        counters = {
            key: float(value) for key, value in entry.items()
            if isinstance(value, (int, float)) and key not in NO_COUNTERS
        }
        for clock in ["real_time", "cpu_time"]:
            if clock in entry:  # a program that measures a GPU has no time of the processor
                counters[f"{clock}_s"] = entry[clock] * SECONDS[entry.get("time_unit", "ns")]
        if entry["run_type"] == "iteration":
            single.setdefault(name, []).append(counters)
        elif entry.get("aggregate_name") == "median":
            medians[name] = counters
    for name, runs in single.items():
        if name not in medians and len(runs) > 1:
            raise Refused(f"{name} has {len(runs)} repetitions and no median")
    return {name: medians.get(name) or single[name][0] for name in [*single, *medians]}


def load(folder):
    """{file's stem: document} of all stored figures."""
    documents = {}
    for path in sorted(folder.glob("*.json")):
        if path.name not in [FIGURES, PUBLIC, COUNTERS]:
            documents[path.stem] = attributed(path)
    return documents


def attributed(path):
    """What is stored in a file that says where its figures come from."""
    document = json.loads(path.read_text())
    missing = [key for key in ["device", "commit", "command"] if not document["context"].get(key)]
    if missing:
        raise Refused(f"{path.name} does not say its {', '.join(missing)}")
    return document


def companions(folder):
    """The files that stand beside the stored ones; None where there is none."""
    public, counters = folder / PUBLIC, folder / COUNTERS
    return (json.loads(public.read_text()) if public.is_file() else None,
            attributed(counters) if counters.is_file() else None)


def figures_of(documents):
    figures, origin = {}, {}
    for stem, document in documents.items():
        for name, counters in measurements(document).items():
            for counter, value in counters.items():
                own = counter.startswith("figure:")
                figure = counter[len("figure:"):] if own else f"{stem}/{name}/{counter}"
                if figure in figures:
                    raise Refused(f"figure {figure} comes from {origin[figure]} and from {stem}/{name}")
                figures[figure], origin[figure] = float(f"{value:.6g}"), f"{stem}/{name}"
    return dict(sorted(figures.items()))


def quantity(value, unit=""):
    """Three digits and a prefix: 0.0000123 s -> 12.3 us."""
    if value == 0:
        return f"0 {unit}".strip()
    for factor, prefix in [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1, ""), (1e-3, "m"),
                           (1e-6, "u"), (1e-9, "n")]:
        if abs(value) >= factor * 0.9995:
            break
    digits = f"{value / factor:#.3g}".rstrip(".")
    return f"{digits} {prefix}{unit}".strip()


COLUMNS = {
    "real_time_s": ("time", lambda v: quantity(v, "s")),
    "bytes_per_second": ("bytes/s", lambda v: quantity(v, "B/s")),
    "items_per_second": ("items/s", lambda v: quantity(v, "/s")),
}


def cells_of(row):
    """{column title: text} of one benchmark. Figures that share all but the last part of their name
    get a column each; any other figure is given with its name."""
    cells = {title: text(row[key]) for key, (title, text) in COLUMNS.items() if key in row}
    figures = {key[len("figure:"):]: value for key, value in row.items() if key.startswith("figure:")}
    families = {name.rpartition(".")[0] for name in figures}
    for key in sorted(row):
        if not key.startswith("figure:") and key not in COLUMNS and key != "cpu_time_s":
            cells[key] = f"{row[key]:.4g}"
    if len(figures) > 1 and len(families) == 1:
        cells.update({name.rpartition(".")[2]: f"{value:.4g}" for name, value in figures.items()})
    elif figures:
        cells["figures"] = "; ".join(f"{name} {value:.4g}" for name, value in figures.items())
    return cells


def table(rows):
    """One table for each run of benchmarks that have the same columns."""
    parts, titles = [], None
    for name, row in rows.items():
        cells = cells_of(row)
        if list(cells) != titles:
            titles = list(cells)
            parts.append(["| benchmark | " + " | ".join(titles) + " |",
                          "| --- |" + " ---: |" * len(titles)])
        parts[-1].append(f"| `{name}` | " + " | ".join(cells.values()) + " |")
    return "\n\n".join("\n".join(lines) for lines in parts)


def split(document):
    """(measurements of decode attention, all others)"""
    rows = measurements(document)
    own = {name: row for name, row in rows.items() if attention_page.is_attention({name: row})}
    return own, {name: row for name, row in rows.items() if name not in own}


def tables(documents, public, counters):
    parts = [BEGIN]
    for stem, document in documents.items():
        context = document["context"]
        attention, rows = split(document)
        if attention:
            parts += attention_page.section(stem, attention, context, public, counters)
        if rows:
            parts += [f"## {stem}", f"{context['device']}, commit `{context['commit']}`:",
                      f"`{context['command']}`", table(rows), f"![{stem}](performance/{stem}.svg)"]
    return "\n\n".join([*parts, END])


def plots(documents, public):
    """{name of the file: text}"""
    files = {}
    for stem, document in documents.items():
        attention, rows = split(document)
        if attention:
            files.update(attention_page.plots(stem, attention, document["context"], public))
        if rows:
            files[f"{stem}.svg"] = plot(stem, rows, document["context"])
    return files


def plot(stem, rows, context):
    """Bars, one a benchmark: bytes/s or items/s where given, else the time."""
    key = next((key for key in ["bytes_per_second", "items_per_second"]
                if all(key in row for row in rows.values())), "real_time_s")
    title, text = COLUMNS[key]
    most = max((row[key] for row in rows.values()), default=0) or 1.0
    label, width, step = 12 + 7 * max((len(name) for name in rows), default=0), 360, 20
    height = 44 + step * len(rows)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{label + width + 110}" height="{height}" '
        'font-family="monospace" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="20">'
        f"{html.escape(stem)}: {title}, {html.escape(context['device'])}</text>",
    ]
    for index, (name, row) in enumerate(rows.items()):
        y = 32 + step * index
        length = max(1.0, width * row[key] / most)
        lines.append(
            f'<text x="8" y="{y + 13}">{html.escape(name)}</text>'
            f'<rect x="{label}" y="{y + 2}" width="{length:.1f}" height="{step - 6}" fill="#4878a8"/>'
            f'<text x="{label + length + 6:.1f}" y="{y + 13}">{text(row[key])}</text>')
    return "\n".join([*lines, "</svg>\n"])


def rendered(docs):
    """{path: text} of everything that follows from the stored figures."""
    folder, page = docs / "performance", docs / "performance.md"
    documents = load(folder)
    public, counters = companions(folder)
    text = page.read_text() if page.is_file() else f"# Performance\n\n{BEGIN}\n{END}\n"
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise Refused(f"{page.name} must hold {BEGIN} and {END} once each")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    files = {page: before + tables(documents, public, counters) + after,
             folder / FIGURES: json.dumps(figures_of(documents), indent=1) + "\n"}
    files.update({folder / name: text for name, text in plots(documents, public).items()})
    return files


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return f"{line.split(':', 1)[1].strip()}, {os.cpu_count()} cores"
    return f"unknown processor, {os.cpu_count()} cores"


def commit():
    git = ["git", "-C", str(ROOT)]
    head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True)
    dirty = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"],
                           capture_output=True, text=True)
    return head.stdout.strip() + ("-modified" if dirty.stdout.strip() else "")


def measure(options):
    build, binary = ROOT / "build" / "bench", options.binary
    if binary is None:
        headers = ROOT / "build" / "cuda" / "nvidia" / "cu13" / "include"  # of scripts/setup.sh
        more = [f"-DDIFFKV_CUDA_INCLUDE_DIRS={headers}"] if headers.is_dir() else []
        subprocess.run(["cmake", "--preset", "bench", *more], cwd=ROOT, check=True)
        subprocess.run(["cmake", "--build", build], check=True)
        binary = build / "bench" / "diffkv_bench"
    more = options.arguments or ["--benchmark_repetitions=5",
                                 "--benchmark_report_aggregates_only=true"]
    with tempfile.TemporaryDirectory() as drafts:
        draft = Path(drafts) / "draft.json"
        subprocess.run([binary, f"--benchmark_out={draft}", "--benchmark_out_format=json", *more],
                       check=True)
        store([draft], options, processor(), " ".join([Path(binary).name, *more]))


def store(drafts, options, device, command):
    """Puts what benches wrote among the stored files, and says where it comes from."""
    parts = [json.loads(draft.read_text()) for draft in drafts]
    document = {**parts[0], "benchmarks": [entry for part in parts for entry in part["benchmarks"]]}
    context = document["context"]
    context.pop("host_name", None)  # says nothing about the figures
    context["executable"] = Path(context["executable"]).name
    context.setdefault("device", options.device or device)
    context.setdefault("commit", options.commit or commit())
    own = dict.fromkeys(part["context"]["command"] for part in parts if "command" in part["context"])
    context["command"] = "; ".join(own) or options.command or command
    if not measurements(document):
        raise Refused("no benchmark has run")
    write(options.docs / "performance" / f"{options.name}.json", document)


def write(path, document):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def store_counters(options):
    """Counters of single launches, beside the bytes and tokens of the same cases."""
    rows = {}
    for document in load(options.docs / "performance").values():
        rows.update(split(document)[0])
    kernels = {}
    for item in options.files:
        case, _, path = item.partition("=")
        row = rows.get(attention_page.PREFIX + case)
        if row is None:
            raise Refused(f"no stored file holds {attention_page.PREFIX}{case}")
        try:
            kernels[case] = {"bytes": row["bytes"], "tokens": row["tokens"],
                             **attention_page.read_counters(Path(path))}
        except ValueError as problem:
            raise Refused(str(problem)) from problem
    write(options.docs / "performance" / COUNTERS, {
        "context": {"device": options.device, "commit": options.commit or commit(),
                    "command": options.command}, "kernels": kernels})


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", nargs="?", choices=["run", "store", "counters"])
    parser.add_argument("files", nargs="*", help="store: FILE ...; counters: CASE=FILE ...")
    parser.add_argument("--check", action="store_true", help="fail if anything would change")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="the folder of the docs")
    parser.add_argument("--name", default="host", help="name of the stored file")
    parser.add_argument("--binary", type=Path, help="run: this program, not the host benches")
    parser.add_argument("--device", help="the device measured, where it is not this processor")
    parser.add_argument("--command", help="store, counters: what was run there")
    parser.add_argument("--commit", help="of the tree that was measured, where it is not this one")
    parser.add_argument("--arguments", nargs=argparse.REMAINDER, help="run: for the program, last")
    options = parser.parse_args()
    try:
        if options.action == "run":
            measure(options)
        elif options.action and not (options.device and options.command and options.files):
            raise Refused(f"{options.action} needs a file, --device and --command")
        elif options.action == "store":
            store([Path(file) for file in options.files], options, None, None)
        elif options.action == "counters":
            store_counters(options)
        files = rendered(options.docs)
        changed = [path for path, text in files.items()
                   if not path.is_file() or path.read_text() != text]
        if options.check:
            if changed:
                raise Refused("out of date: " + ", ".join(path.name for path in changed) +
                              "; run scripts/performance.py")
            return
        for path in changed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(files[path])
            print(f"wrote {path}")
    except Refused as problem:
        sys.exit(f"performance.py: {problem}")


if __name__ == "__main__":
    main()
