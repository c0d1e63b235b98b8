# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""A room includes only rooms above it, and `detail`; and nothing but the CUDA Toolkit and the
standard library from outside. With --wrong, checks instead that wrong trees are found out."""
import re
import sys
import tempfile
from pathlib import Path

from toolbox import headers, includes

ROOMS = [
    "core", "policy", "quant", "page", "pool", "table", "compaction", "attention", "prefill", "host",
    "cache",
]
STANDARD = re.compile(r"<[a-z_0-9]+>")
TOOLKIT = re.compile(r"<(cuda[a-z_0-9]*\.h|(cuda|nv)/[a-z_0-9/]+|cub/[a-z_0-9/]+\.cuh|mma\.h)>")


def problems_of(root):
    problems = []
    known = headers(root, ".hpp", ".cuh")
    for name in headers(root, ".hpp", ".cuh", ".h", ".cu", ".cpp", ".inl", ".ipp"):
        text = (Path(root) / "include" / name).read_text()
        parts = name.split("/")
        room = parts[1] if len(parts) > 2 else None
        if not name.endswith((".hpp", ".cuh")):
            problems.append(f"{name}: a header is a .hpp, or a .cuh if it needs nvcc")
        if room not in [*ROOMS, "detail"]:
            problems.append(f"{name}: lies in none of the rooms {', '.join(ROOMS)}, detail")
            continue
        if "#pragma once" not in text:
            problems.append(f"{name}: #pragma once is missing")
        if "SPDX-License-Identifier: Apache-2.0" not in text:
            problems.append(f"{name}: the licence line is missing")
        for include in includes(text):
            target = include[1:-1]
            if include.startswith('"'):
                problems.append(f"{name}: {include} must be <diffkv/...>")
            elif target.startswith("diffkv/"):
                other = target.split("/")[1]
                if target not in known:
                    problems.append(f"{name}: {include} does not exist")
                elif room == "detail" and other != "detail":
                    problems.append(f"{name}: {include} is in a room, detail is below all of them")
                elif room != "detail" and other != "detail" and (
                    ROOMS.index(other) > ROOMS.index(room)
                ):
                    problems.append(f"{name}: {include} is in a room below {room}")
                if name.endswith(".hpp") and target.endswith(".cuh"):
                    problems.append(f"{name}: {include} needs nvcc, a .hpp must not")
            elif target.startswith(("cub/", "mma")) and name.endswith(".hpp"):
                problems.append(f"{name}: {include} needs nvcc, a .hpp must not")
            elif not STANDARD.fullmatch(include) and not TOOLKIT.fullmatch(include):
                problems.append(f"{name}: {include} is neither the CUDA Toolkit's nor standard")
    return problems + circles(root, known)


def circles(root, names):
    """Includes that come back to where they started."""
    follows = {
        name: [
            i[1:-1] for i in includes((Path(root) / "include" / name).read_text())
            if i[1:-1] in names
        ]
        for name in names
    }
    problems, done = [], set()

    def visit(name, path):
        if name in path:
            problems.append(" -> ".join([*path[path.index(name):], name]) + ": a circle")
        elif name not in done:
            for other in follows[name]:
                visit(other, [*path, name])
            done.add(name)

    for name in names:
        visit(name, [])
    return problems


WRONG = {  # a tree with one mistake, and what has to be said about it
    "quant/a.hpp: <diffkv/page/b.hpp> is in a room below quant":
        {"quant/a.hpp": "#include <diffkv/page/b.hpp>", "page/b.hpp": ""},
    "detail/a.hpp: <diffkv/core/b.hpp> is in a room, detail":
        {"detail/a.hpp": "#include <diffkv/core/b.hpp>", "core/b.hpp": ""},
    'core/a.hpp: "b.hpp" must be':
        {"core/a.hpp": '#include "b.hpp"', "core/b.hpp": ""},
    "core/a.hpp: <fmt/format.h> is neither":
        {"core/a.hpp": "#  include <fmt/format.h>"},
    "core/a.hpp: <diffkv/core/gone.hpp> does not exist":
        {"core/a.hpp": "#include <diffkv/core/gone.hpp>"},
    "host/a.hpp: <diffkv/host/b.cuh> needs nvcc":
        {"host/a.hpp": "#include <diffkv/host/b.cuh>", "host/b.cuh": ""},
    "pool/a.hpp: <cub/block/block_scan.cuh> needs nvcc":
        {"pool/a.hpp": "#include <cub/block/block_scan.cuh>"},
    "attic/a.hpp: lies in none of the rooms": {"attic/a.hpp": ""},
    "core/a.h: a header is a .hpp": {"core/a.h": ""},
    "diffkv/core/a.hpp -> diffkv/core/b.hpp -> diffkv/core/a.hpp: a circle":
        {"core/a.hpp": "#include <diffkv/core/b.hpp>",
         "core/b.hpp": "#include <diffkv/core/a.hpp>"},
}
RIGHT = {
    "detail/a.hpp": "#include <cstdint>",
    "core/a.hpp": "#include <diffkv/detail/a.hpp>\n#include <cuda_fp16.h>",
    "page/a.hpp": "#include <diffkv/core/a.hpp>\n#include <cuda/std/span>",
    "pool/a.cuh": "#include <diffkv/page/a.hpp>\n#include <cub/block/block_scan.cuh>",
}


def found_in(files):
    with tempfile.TemporaryDirectory() as root:
        for name, text in files.items():
            path = Path(root) / "include" / "diffkv" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("// SPDX-License-Identifier: Apache-2.0\n#pragma once\n" + text + "\n")
        return problems_of(root)


def main():
    if "--wrong" in sys.argv:
        problems = [f"not found out: {said}" for said, files in WRONG.items()
                    if not any(said in problem for problem in found_in(files))]
        problems += [f"wrongly found: {problem}" for problem in found_in(RIGHT)]
        done = f"{len(WRONG)} wrong trees are found out"
    else:
        root = sys.argv[1]
        problems = problems_of(root)
        number = len(headers(root, ".hpp", ".cuh"))
        if not number:
            problems.append("no headers found")
        done = f"{number} headers, each in its room"
    print("\n".join(problems) if problems else done)
    sys.exit(bool(problems))


main()
