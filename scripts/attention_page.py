# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Decode attention on the performance page: tables, a roofline, a plot of ratios, and the budget of a
tile. Used by performance.py for a stored file whose benchmarks are called `device_attention/...`.

Two more files may stand beside the stored ones in docs/performance:
  public_kernels.json   what others' kernels were measured at, on which machine
  ncu_attention.json    counters of single launches; `performance.py counters` makes it
"""
import csv
import html
import math
import re

PREFIX = "device_attention/"
FORMATS = ["k16v16", "k8v8", "k8v4", "k4v4", "k4v2", "mix"]
COLOURS = ["#4878a8", "#6aa84f", "#e69138", "#a64d79", "#cc4125", "#444444"]
BLOCK_TOKENS = 16  # a tile: the tokens of one fragment block

# What is put on top of the mix: case, figure, in words.
ON_TOP = [
    ("mix_conditioned", "attention.conditioning_overhead.mix.{}", "centred and rotated"),
    ("mix_every4", "score.overhead.mix.{}.every4", "scores caught up with every 4th step"),
    (
        "mix_every4_apart",
        "score.overhead.mix.{}.every4_apart",
        "the same, sequences at different positions",
    ),
    (
        "mix_every4_by_position",
        "score.overhead.mix.{}.every4_by_position",
        "each sequence caught up with by its own position",
    ),
    ("mix_every1", "score.overhead.mix.{}.every1", "exact scores every step"),
    ("mix_ragged", "attention.ragged_loss.mix.{}", "heads of a sequence up to 8 times as long"),
    ("mix_with_plan", "attention.plan_overhead.mix.{}", "plan of all layers in front"),
]

# Counters of `ncu --csv --print-units base`, and what they are called here. Run as a program, this file
# prints them for `ncu --metrics`.
COUNTERS = {
    "gpu__time_duration.sum": "nanoseconds",
    "sm__cycles_elapsed.avg": "cycles",
    "device__attribute_multiprocessor_count": "multiprocessors",
    "dram__bytes_read.sum": "dram_bytes_read",
    "dram__bytes_write.sum": "dram_bytes_written",
    "smsp__inst_executed.sum": "instructions",
    "sm__inst_executed_pipe_tensor.sum": "tensor_instructions",
    "smsp__issue_active.avg.pct_of_peak_sustained_elapsed": "issue_active_percent",
    "launch__registers_per_thread": "registers",
}


def cases(rows):
    """{(format, shape, suffix): counters}; `shape` as 128x4096, `suffix` as group5, d64 or nothing."""
    found = {}
    for name, row in rows.items():
        match = re.fullmatch(r"(?:device|planned)_attention/(\w+)\.(\d+x\d+)(?:\.(\w+))?", name)
        if match:
            found[(match[1], match[2], match[3] or "")] = row
    return found


def is_attention(rows):
    return bool(cases(rows))


def grid(corner, columns, lines):
    """A table; lines without any cell are left out."""
    text = [f"| {corner} | " + " | ".join(columns) + " |", "| --- |" + " ---: |" * len(columns)]
    text += [f"| {name} | " + " | ".join(cell or "" for cell in cells) + " |"
             for name, cells in lines if any(cells)]
    return "\n".join(text)


def percent(value, digits=1):
    return f"{100 * value:.{digits}f} %"


def microseconds(value):
    return f"{value:#.3g}".rstrip(".") + " us"


def places(found, has_suffix):
    """(shape, suffix) in order, of the formats."""
    return list(dict.fromkeys((shape, suffix) for name, shape, suffix in found
                              if name in FORMATS and bool(suffix) == has_suffix))


def of_formats(found, where, text):
    return [(" ".join(filter(None, place)),
             [text(found[(name, *place)]) if (name, *place) in found else "" for name in FORMATS])
            for place in where]


def own_tables(found):
    plain, others = places(found, False), places(found, True)
    share = lambda row: percent(row["of_ceiling"])
    parts = ["Share of the read ceiling (`of_ceiling`), 4 q_heads a head, head_dim 128:",
             grid("batch x tokens", FORMATS, of_formats(found, plain, share)),
             "Time of one launch, and how many times faster that is than 16-bit pages of the same rows "
             "before pruning (`speedup_over_k16v16`):",
             grid("batch x tokens", FORMATS, of_formats(found, plain, lambda row: microseconds(
                 1e6 * row["real_time_s"]) + f", {row.get('speedup_over_k16v16', 0):.2f}x")),
             "Time of a kernel that reads as many bytes, over the time of the launch (`of_same_read`):",
             grid("batch x tokens", FORMATS,
                  of_formats(found, plain, lambda row: percent(row["of_same_read"])))]
    if others:
        parts += ["Other group sizes, head_dim 64 with as many bytes of codes, and two and four scales a "
                  "vector: share of the read ceiling:",
                  grid("batch x tokens", FORMATS, of_formats(found, others, share))]
    on_top = [name for name, _, _ in ON_TOP]
    shapes = list(dict.fromkeys(shape for name, shape, _ in found if name in on_top))
    if shapes:
        lines = []
        for name, figure, words in ON_TOP:
            values = [found.get((name, shape, ""), {}).get("figure:" + figure.format(shape))
                      for shape in shapes]
            lines.append((f"{words} (`{name}`)",
                          ["" if v is None else f"{100 * v:+.1f} %" for v in values]))
        parts += ["The time that comes on top of the mix, in percent of it:",
                  grid("on top", shapes, lines)]
    return parts


def public_table(found, public):
    shapes = [shape for shape, _ in places(found, False)]
    cell = lambda us, share: f"{microseconds(us)}, {percent(share, 0)}"
    lines = [(f"diffkv {name}", [
        cell(1e6 * found[(name, shape, "")]["real_time_s"], found[(name, shape, "")]["of_ceiling"])
        if (name, shape, "") in found else "" for shape in shapes]) for name in FORMATS]
    for kernel in public["kernels"]:
        lines.append((f"{kernel['name']}, {kernel['bytes_per_token']} B",
                      [cell(*kernel["at"][shape]) if shape in kernel["at"] else ""
                       for shape in shapes]))
    return ["### Beside public kernels",
            "Time, and share of the read ceiling that was measured in the same run: another machine for "
            "diffkv than for the rest, so compare the shares. Bytes are those of a token and head. "
            "16-bit and fp8 kernels are what users run today; none of them prunes.",
            grid("kernel", shapes, lines),
            f"Others: {public['machine']}. {public['method']} {public['sources']}"]


# --- the budget of a tile ---------------------------------------------------------------------------

def tensor_budget(name, group_size, head_dim):
    """Matrix instructions of a tile: one takes 32 codes or 16 f16 numbers of each of 16 tokens (of 16
    dims in the other product) against the two halves of 4 queries (weights)."""
    bits = re.findall(r"\d+", "k8v4" if name.startswith("mix") else name)  # k4v2 takes as many
    return math.ceil(group_size / 4) * sum(head_dim // (16 if b == "16" else 32) for b in bits)


def budget_line(case, counted, ceiling):
    name, _, suffix = re.fullmatch(r"(\w+)\.(\w+)(?:\.(\w+))?", case).groups()
    group = int(suffix[5:]) if suffix and suffix.startswith("group") else 4
    dim = int(suffix[1:]) if suffix and suffix.startswith("d") else 128
    tiles = counted["tokens"] / BLOCK_TOKENS
    tile_bytes = counted["bytes"] / tiles
    clock = counted["cycles"] / (1e-9 * counted["nanoseconds"])
    slots = 4 * counted["multiprocessors"] * clock * tile_bytes / ceiling  # 4 schedulers each
    instructions = counted["instructions"] / tiles
    number = lambda value: f"{value:.0f}"
    return (f"`{case}`", [
        number(tile_bytes), number(counted["dram_bytes_read"] / tiles),
        number(tensor_budget(name, group, dim)), f"{counted['tensor_instructions'] / tiles:.1f}",
        number(instructions), number(slots), percent(instructions / slots, 0),
        f"{counted['issue_active_percent']:.0f} %", number(counted["registers"])])


def budget(found, counters):
    context = counters["context"]
    lines = []
    for case, counted in counters["kernels"].items():
        name, _, rest = case.partition(".")
        shape, _, suffix = rest.partition(".")
        row = found.get((name, shape, suffix))
        if row is not None:
            lines.append(budget_line(case, counted, 1e9 * row["ceiling_gigabytes_per_second"]))
    columns = ["bytes", "DRAM bytes read", "matrix instructions", "counted", "instructions counted",
               "issue slots", "share", "issue slots busy", "registers"]
    return ["### Instruction and byte budget per tile",
            f"A tile is {BLOCK_TOKENS} tokens of one head. Its budget: the codes and metadata that must "
            "come from memory, the matrix instructions of its two products, and the issue slots that all "
            "multiprocessors together have while memory delivers those bytes at the read ceiling. "
            "Beside them what was counted in a single launch, divided by its tiles; everything that a "
            "launch does is in it. `share` is instructions over issue slots: where it is well below "
            "100 %, instructions do not bound the kernel. `issue slots busy` is over the whole launch, "
            "its start and end included.",
            grid("launch", columns, lines),
            f"{context['device']}, commit `{context['commit']}`: `{context['command']}`"]


def read_counters(path):
    """Means over the launches in the output of ncu --csv (one line for each launch and metric)."""
    text = path.read_text().splitlines()
    start = next((i for i, line in enumerate(text) if line.startswith('"ID"')), None)
    if start is None:
        raise ValueError(f"{path.name} holds no output of ncu --csv")
    values = {}
    for line in csv.DictReader(line for line in text[start:] if line.startswith('"')):
        key = COUNTERS.get(line["Metric Name"])
        if key:
            values.setdefault(key, []).append(float(line["Metric Value"].replace(",", "")))
    missing = [metric for metric, key in COUNTERS.items() if key not in values]
    if missing:
        raise ValueError(f"{path.name} lacks {', '.join(missing)}")
    return {key: sum(v) / len(v) for key, v in values.items()}


# --- plots ------------------------------------------------------------------------------------------

def svg(width, height, title, body):
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="monospace" font-size="12">',
        f'<rect width="100%" height="100%" fill="white"/><text x="8" y="20">{html.escape(title)}</text>',
        *body, "</svg>\n"])


def roofline(found, device):
    """Useful operations per second over operations per byte, both logarithmic: 2 products, 2 operations
    an element and q_head. Under the roof of memory, since all points lie left of the one of arithmetic."""
    points = []
    for (name, shape, suffix), row in found.items():
        if name not in FORMATS:
            continue
        group = int(suffix[5:]) if suffix.startswith("group") else 4
        dim = int(suffix[1:]) if suffix.startswith("d") else 128
        operations = 4 * group * dim * row["tokens"]
        points.append((name, shape, suffix, operations / row["bytes"], operations / row["real_time_s"]))
    ceiling = 1e9 * max(row["ceiling_gigabytes_per_second"] for row in found.values())
    left, top, width, height = 90, 40, 560, 380
    x_low, x_high = 0.8, 64.0
    y_low, y_high = 1e12, ceiling * x_high * 1.2
    x_of = lambda v: left + width * math.log(v / x_low) / math.log(x_high / x_low)
    y_of = lambda v: top + height * (1 - math.log(v / y_low) / math.log(y_high / y_low))
    body = [f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#888"/>']
    for v in [1, 2, 4, 8, 16, 32, 64]:
        body.append(f'<text x="{x_of(v) - 6:.1f}" y="{top + height + 18}">{v}</text>'
                    f'<path d="M{x_of(v):.1f} {top}v{height}" stroke="#eee"/>')
    v = y_low
    while v < y_high:
        body.append(f'<text x="{left - 50}" y="{y_of(v) + 4:.1f}">{v / 1e12:4.0f} T</text>'
                    f'<path d="M{left} {y_of(v):.1f}h{width}" stroke="#eee"/>')
        v *= 4
    roof = max(x_low, y_low / ceiling)
    body.append(f'<path d="M{x_of(roof):.1f} {y_of(roof * ceiling):.1f}L{x_of(x_high):.1f} '
                f'{y_of(x_high * ceiling):.1f}" stroke="black" stroke-width="1.5"/>'
                f'<text x="{left + 8}" y="{top + 18}">roof: {ceiling / 1e9:.0f} GB/s read</text>')
    for name, shape, suffix, intensity, speed in points:
        colour = COLOURS[FORMATS.index(name)]
        label = html.escape(" ".join(filter(None, [name, shape, suffix])))
        body.append(f'<circle cx="{x_of(intensity):.1f}" cy="{y_of(max(speed, y_low)):.1f}" r="4" '
                    f'fill="{"none" if suffix else colour}" stroke="{colour}">'
                    f"<title>{label}</title></circle>")
    for index, name in enumerate(FORMATS):
        y = top + 40 + 18 * index
        body.append(f'<circle cx="{left + 14}" cy="{y - 4}" r="4" fill="{COLOURS[index]}"/>'
                    f'<text x="{left + 26}" y="{y}">{name}</text>')
    body.append(f'<text x="{left}" y="{top + height + 38}">operations per byte of codes and metadata '
                "(rings: other group sizes, head_dim 64, scale groups)</text>")
    return svg(left + width + 30, top + height + 56, f"decode attention, operations/s, {device}", body)


def ratios(found, public, device):
    """Bars: share of the read ceiling, a block for each number of sequences."""
    blocks = []
    for shape, _ in places(found, False):
        bars = [(f"diffkv {name}", found[(name, shape, "")]["of_ceiling"], COLOURS[0],
                 f", {found[(name, shape, '')].get('speedup_over_k16v16', 0):.2f}x k16v16")
                for name in FORMATS if (name, shape, "") in found]
        for kernel in public["kernels"] if public else []:
            if shape in kernel["at"]:
                bars.append((kernel["name"], kernel["at"][shape][1], "#bbbbbb", ""))
        blocks.append((shape, bars))
    longest = max(len(bar[0]) for _, bars in blocks for bar in bars)
    label, width, step = 20 + 8 * longest, 360, 18
    body, y = [], 44
    for shape, bars in blocks:
        body.append(f'<text x="8" y="{y}" font-weight="bold">{shape}</text>')
        y += 6
        for name, share, colour, more in bars:
            length = max(1.0, width * share)
            body.append(f'<text x="16" y="{y + 12}">{html.escape(name)}</text>'
                        f'<rect x="{label}" y="{y + 2}" width="{length:.1f}" height="{step - 5}" '
                        f'fill="{colour}"/><text x="{label + width + 8}" y="{y + 12}">'
                        f"{percent(share, 0)}{more}</text>")
            y += step
        y += 26
    body.append(f'<path d="M{label + width} 30V{y - 30}" stroke="black" stroke-dasharray="4 3"/>')
    return svg(label + width + 170, y, f"share of the read ceiling, {device}", body)


def section(stem, rows, context, public, counters):
    found = cases(rows)
    parts = [f"## Decode attention ({stem})", f"{context['device']}, commit `{context['commit']}`:",
             f"`{context['command']}`",
             "8 heads, pages scattered over the pool, one launch inside a CUDA graph, its plan ready, "
             "over as many layers as 600 MB need; with scores, and for the mix that these are compared "
             "with (`mix_many_layers`), over as many as write half as many scores again as the L2 cache "
             "holds. `mix`: of the tokens before pruning 40 % are K8V4, 40 % K4V2, 20 % absent. Bytes are "
             "codes and metadata of the tokens attended to; the read ceiling is a kernel that only reads, "
             "8 GiB a launch, measured beside each sample.",
             *own_tables(found)]
    if public:
        parts += public_table(found, public)
    parts += [f"![share of the read ceiling](performance/{stem}_ratios.svg)",
              f"![roofline](performance/{stem}_roofline.svg)"]
    if counters:
        parts += budget(found, counters)
    return parts


def plots(stem, rows, context, public):
    """{name of the file: text}"""
    found = cases(rows)
    return {f"{stem}_ratios.svg": ratios(found, public, context["device"]),
            f"{stem}_roofline.svg": roofline(found, context["device"])}


if __name__ == "__main__":
    print(",".join(COUNTERS))  # for ncu --metrics
