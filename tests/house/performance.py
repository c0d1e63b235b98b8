# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/performance.py renders what is stored: medians, names of figures, tables that keep the
text around them, the page of decode attention; and it refuses figures that do not say where they come from."""
import copy
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(sys.argv[1]) / "scripts" / "performance.py"


def entry(name, run_type, time, **more):
    return {"name": name, "run_name": name, "run_type": run_type, "threads": 1, "iterations": 10,
            "real_time": time, "cpu_time": time, "time_unit": "us", **more}


HOST = {
    "context": {"device": "a processor", "commit": "0123456789ab", "command": "diffkv_bench"},
    "benchmarks": [
        entry("encode<k8>/head_dim:64/real_time", "iteration", 90.0, bytes_per_second=1e9),
        entry("encode<k8>/head_dim:64/real_time", "iteration", 70.0, bytes_per_second=3e9),
        entry("encode<k8>/head_dim:64/real_time", "aggregate", 80.0, bytes_per_second=2e9,
              aggregate_name="median"),
        entry("encode<k8>/head_dim:64/real_time", "aggregate", 10.0, bytes_per_second=1e8,
              aggregate_name="stddev"),
        entry("ring/pages:7", "iteration", 2.5, **{"figure:ring_share": 0.75}),
    ],
}
EXPECTED = {
    "host/encode<k8>/head_dim:64/bytes_per_second": 2e9,
    "host/encode<k8>/head_dim:64/cpu_time_s": 80e-6,
    "host/encode<k8>/head_dim:64/real_time_s": 80e-6,
    "host/ring/pages:7/cpu_time_s": 2.5e-6,
    "host/ring/pages:7/real_time_s": 2.5e-6,
    "ring_share": 0.75,
}


def render(docs, *arguments):
    done = subprocess.run([sys.executable, "-B", SCRIPT, "--docs", docs, *arguments],
                          capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def refused(change, said):
    """A store that `change` has spoilt is refused, and the message holds `said`."""
    with tempfile.TemporaryDirectory() as docs:
        folder = Path(docs) / "performance"
        folder.mkdir()
        documents = {"host": copy.deepcopy(HOST)}
        change(documents)
        for name, document in documents.items():
            (folder / f"{name}.json").write_text(json.dumps(document))
        status, output = render(docs)
        assert status != 0 and said in output, (said, status, output)


with tempfile.TemporaryDirectory() as docs:
    page, folder = Path(docs) / "performance.md", Path(docs) / "performance"
    folder.mkdir()
    (folder / "host.json").write_text(json.dumps(HOST))
    page.write_text("before\n<!-- performance:begin -->old<!-- performance:end -->\nafter\n")
    status, output = render(docs, "--check")
    assert status != 0 and "performance.md" in output, output
    status, output = render(docs)
    assert status == 0, output
    assert render(docs, "--check")[0] == 0

    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n") and "old" not in text, text
    assert "a processor, commit `0123456789ab`" in text and "`diffkv_bench`" in text, text
    assert "| `encode<k8>/head_dim:64` | 80.0 us | 2.00 GB/s |" in text, text
    assert "| `ring/pages:7` | 2.50 us | ring_share 0.75 |" in text, text
    figures = json.loads((folder / "figures.json").read_text())
    assert figures == EXPECTED, figures
    plot = (folder / "host.svg").read_text()
    assert plot.startswith("<svg") and "encode&lt;k8&gt;" in plot, plot

# Decode attention has tables of its own, and counters of single launches beside them.
def attention(name, time, **counters):
    return entry(f"device_attention/{name}/iterations:1/manual_time", "iteration", time, bytes=64e6,
                 tokens=1e6, of_same_read=0.9, ceiling_gigabytes_per_second=4000.0, **counters)


GPU = {
    "context": {"device": "a GPU", "commit": "0123456789ab", "command": "diffkv_device_bench"},
    "benchmarks": [
        attention("k16v16.8x4096", 40.0, of_ceiling=0.8, speedup_over_k16v16=1.0),
        attention("mix.8x4096", 16.0, of_ceiling=0.5, speedup_over_k16v16=2.5),
        attention("mix_every4.8x4096", 17.0, of_ceiling=0.47,
                  **{"figure:score.overhead.mix.8x4096.every4": 0.0625}),
        attention("k8v4.8x4096.group5", 20.0, of_ceiling=0.55),
        entry("planned_attention/mix_with_plan.8x4096", "iteration", 16.5, bytes=64e6, tokens=1e6,
              of_ceiling=0.48, of_same_read=0.9, ceiling_gigabytes_per_second=4000.0,
              **{"figure:attention.plan_overhead.mix.8x4096": 0.03}),
        entry("ring/pages:7", "iteration", 2.5),
    ],
}
PUBLIC = {"machine": "others", "method": "Their way.", "sources": "Theirs.", "kernels": [
    {"name": "a kernel", "bytes_per_token": 256, "at": {"8x4096": [29.0, 0.49]}}]}
NCU = {"gpu__time_duration.sum": "20,000", "sm__cycles_elapsed.avg": "40,000",
       "device__attribute_multiprocessor_count": "100", "dram__bytes_read.sum": "65,000,000",
       "dram__bytes_write.sum": "1", "smsp__inst_executed.sum": "10,000,000",
       "sm__inst_executed_pipe_tensor.sum": "500,000", "launch__registers_per_thread": "130",
       "smsp__issue_active.avg.pct_of_peak_sustained_elapsed": "25.5"}

with tempfile.TemporaryDirectory() as work:
    docs, csv = Path(work) / "docs", Path(work) / "mix.csv"
    (docs / "performance").mkdir(parents=True)
    (docs / "performance" / "public_kernels.json").write_text(json.dumps(PUBLIC))
    parts = [Path(work) / "bench.json", Path(work) / "more.json"]  # one file in two parts
    for path, some in zip(parts, [GPU["benchmarks"][:2], GPU["benchmarks"][2:]]):
        path.write_text(json.dumps({"context": {"executable": "./bench"}, "benchmarks": some}))
    said = ["--device", "a GPU", "--commit", "0123456789ab", "--command", "a command"]
    status, output = render(docs, "store", *parts, "--name", "gpu", *said)
    assert status == 0, output
    csv.write_text("==PROF== noise\n" + "\n".join(
        ['"ID","Metric Name","Metric Unit","Metric Value"'] +
        [f'"0","{name}","","{value}"' for name, value in NCU.items()]) + "\n")
    status, output = render(docs, "counters", f"mix.8x4096={csv}", *said)
    assert status == 0, output
    assert render(docs, "--check")[0] == 0
    text = (docs / "performance.md").read_text()
    for line in ["| 8x4096 | 80.0 % |  |  |  |  | 50.0 % |",
                 "| 8x4096 | 40.0 us, 1.00x |  |  |  |  | 16.0 us, 2.50x |",
                 "| 8x4096 group5 |  |  | 55.0 % |  |  |  |",
                 "| scores caught up with every 4th step (`mix_every4`) | +6.2 % |",
                 "| plan of all layers in front (`mix_with_plan`) | +3.0 % |",
                 "| diffkv mix | 16.0 us, 50 % |", "| a kernel, 256 B | 29.0 us, 49 % |",
                 # 1e6 / 16 tiles; 4 * 100 schedulers at 2 GHz for 1024 B at 4000 GB/s: 205 slots
                 "| `mix.8x4096` | 1024 | 1040 | 8 | 8.0 | 160 | 205 | 78 % | 26 % | 130 |",
                 "| `ring/pages:7` | 2.50 us |"]:
        assert line in text, (line, text)
    for name in ["gpu_ratios.svg", "gpu_roofline.svg", "gpu.svg"]:
        assert (docs / "performance" / name).read_text().startswith("<svg"), name
    assert json.loads((docs / "performance" / "figures.json").read_text())[
        "score.overhead.mix.8x4096.every4"] == 0.0625
    status, output = render(docs, "counters", f"k2v2.8x4096={csv}", *said)
    assert status != 0 and "no stored file holds" in output, output
    csv.write_text(csv.read_text().replace("dram__bytes_read.sum", "other"))
    status, output = render(docs, "counters", f"mix.8x4096={csv}", *said)
    assert status != 0 and "lacks dram__bytes_read.sum" in output, output

refused(lambda d: d["host"]["context"].pop("commit"), "host.json does not say its commit")
refused(lambda d: d["host"]["benchmarks"].pop(2), "2 repetitions and no median")
refused(lambda d: d["host"]["benchmarks"][4].update(error_occurred=True, error_message="wrong"),
        "ring/pages:7 failed: wrong")
refused(lambda d: d.update(other=copy.deepcopy(HOST)), "figure ring_share comes from")
print("tables, figures and plots are rendered, and four spoilt stores refused")
