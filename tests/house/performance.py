# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""scripts/performance.py renders what is stored: medians, names of figures, tables that keep the
text around them; and it refuses figures that do not say where they come from."""
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

refused(lambda d: d["host"]["context"].pop("commit"), "host.json does not say its commit")
refused(lambda d: d["host"]["benchmarks"].pop(2), "2 repetitions and no median")
refused(lambda d: d["host"]["benchmarks"][4].update(error_occurred=True, error_message="wrong"),
        "ring/pages:7 failed: wrong")
refused(lambda d: d.update(other=copy.deepcopy(HOST)), "figure ring_share comes from")
print("tables, figures and plots are rendered, and four spoilt stores refused")
