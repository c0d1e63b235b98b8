#!/usr/bin/env python3
# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Writes what an independent implementation makes of the same checkpoint, for the tests.

    scripts/make_fixture.py     needs the folder that scripts/get_model.py makes

Transformers (PyTorch, f32, its plain attention) gives tests/data/smollm2_logits.json; tokenizers
gives tests/data/tokenizer_ids.json and the two small tokenizers under tests/data/tokenizers. The
results are committed: this script is for whoever wants to see how they came about or to make them
anew. It installs its packages (several GB) in build/venv-fixture.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import get_model

ROOT = get_model.ROOT
DATA = ROOT / "tests" / "data"
VENV = ROOT / "build" / "venv-fixture"
TEXT = ROOT / "examples" / "llama3" / "calibration.txt"
PACKAGES = ["torch==2.15.0", "transformers==5.24.0", "tokenizers==0.23.3", "jinja2==3.1.6"]

PROMPT_TOKENS = 400
POSITIONS = [0, 1, 7, 31, 63, 127, 255, 399]
LARGEST = 20

TEXTS = [
    "",
    " ",
    "   ",
    "a",
    "Hello, world!",
    "  leading, trailing  ",
    "a   b",
    "end   \nnext",
    "\n",
    "\n\n\n",
    "line\r\nline\rline\n\n  indented\n",
    "\ttab\t\ttabs \t mixed",
    "    return x  # four spaces",
    "0123456789",
    "1234567 12345 3.14159 1,000,000",
    "A1B22C333D4444",
    "x=10;y=200;z=3000",
    "2024-11-29T23:00:00Z",
    "\u0661\u0662\u0663 \u00b2\u00b3 \u00bd \u2167 \u4e09",  # digits that are not ASCII
    "I'LL we'Ve 'sup don't DON'T it's2024's",
    "they\u2019re \u2018quoted\u2019 \u201cso\u201d",
    "'s't're've'm'll'd",
    "!!! ??? ... --- ~~~ *** ((([[[{{{",
    "https://example.org/a_b?c=d&e=%20#f",
    "snake_case camelCase kebab-case __dunder__",
    "caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u00df \u0130stanbul",
    "cafe\u0301 A\u030angstro\u0308m",  # letters followed by combining marks
    "e\u0301\u0327\u0323 \u0301alone",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8 \u304c\u304b\u3099",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab",  # composed, and as jamo
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u0e44\u0e17\u0e22",
    "\U0001f600\U0001f44d\U0001f3fd",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u00a0no-break\u2003em\u3000ideographic\u200bzero",
    "\u0085next\u2028line\u2029paragraph",
    "\x00\x01\x1f\x7f",
    "\ufeffmark \ufffd \U0010ffff",
    "\u0120G \u010aC",  # the letters by which the byte alphabet spells space and newline
    "\u1e9b\u0323 \u212b \ufb01",  # change under normal form C, or only under KC
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "          " * 5,
    "antidisestablishmentarianism pneumonoultramicroscopicsilicovolcanoconiosis",
]
# Texts that spell control tokens: plain as a user's text, and with the tokens recognised.
CONTROL_TEXTS = {
    "smollm": [
        "<|im_start|>", "<|im_end|>", "<|endoftext|>", "a<|im_end|>b", "a <|im_end|> b",
        "<|im_start|>user\nHi<|im_end|>\n", "<|im_end", "<|im_end|><|im_end|>", "<reponame>x",
    ],
    "llama-bpe": ["a<|eot_id|>b", "<|begin_of_text|>", "<|eot_id|><|eot_id|>", " <|eot_id|> "],
    "qwen2": ["a<|im_end|>b", "<|im_start|>e\u0301", "cafe\u0301<|im_end|>"],
}  # fmt: skip
CONVERSATIONS = [
    [{"role": "user", "content": "What is a page table?"}],
    [
        {"role": "system", "content": "You answer in one sentence."},
        {"role": "user", "content": "  Why is the sky blue? "},
    ],
    [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello. How can I help?"},
        {"role": "user", "content": "Count:\n1\n2"},
    ],
]


def write(name, value):
    path = DATA / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")
    print(f"{path.relative_to(ROOT)}: {path.stat().st_size} bytes")


def small_tokenizer(pre, controls):
    """A trained tokenizer of a few hundred tokens with the rules of a family."""
    import gguf_tokenizer
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    empty = gguf_tokenizer.tokenizer_json(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": [*alphabet, alphabet[0] + alphabet[1], *controls],
            "tokenizer.ggml.token_type": [1] * 257 + [3] * len(controls),
            "tokenizer.ggml.merges": [f"{alphabet[0]} {alphabet[1]}"],
            "tokenizer.ggml.add_bos_token": False,
        }
    )
    learner = tokenizers.Tokenizer.from_str(json.dumps(empty))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700, initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator([TEXT.read_text(), *TEXTS * 3], trainer)
    model = json.loads(learner.to_str())["model"]
    ids = sorted((index, token) for token, index in model["vocab"].items() if token not in controls)
    tokens = [token for _, token in ids]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens + controls,
        "tokenizer.ggml.token_type": [1] * len(tokens) + [3] * len(controls),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in model["merges"]],
        "tokenizer.ggml.bos_token_id": len(tokens),
        "tokenizer.ggml.eos_token_id": len(tokens) + 1,
    }
    made = gguf_tokenizer.tokenizer_json(fields)
    write(f"tokenizers/{pre}/tokenizer.json", made)
    write(
        f"tokenizers/{pre}/tokenizer_config.json",
        gguf_tokenizer.tokenizer_config_json(fields, 8192),
    )
    return tokenizers.Tokenizer.from_str(json.dumps(made))


def cases(tokenizer, pre):
    """Ids of every text; `ids` as of a user, in whose text control tokens are spellings only."""

    def encode(text, as_text):
        tokenizer.encode_special_tokens = as_text
        return tokenizer.encode(text, add_special_tokens=False).ids

    plain = [{"text": text, "ids": encode(text, True)} for text in TEXTS]
    control = [
        {"text": text, "ids": encode(text, True), "ids_with_control": encode(text, False)}
        for text in CONTROL_TEXTS[pre]
    ]
    return plain + control


def tokenizer_fixture(model):
    import tokenizers
    import transformers

    full = transformers.AutoTokenizer.from_pretrained(model)
    chats = []
    for messages in CONVERSATIONS:
        text = full.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        ids = full(text, add_special_tokens=False)["input_ids"]
        chats.append({"messages": messages, "text": text, "ids": ids})
    write(
        "tokenizer_ids.json",
        {
            "made_by": ", ".join(
                f"{p.__name__} {p.__version__}" for p in (tokenizers, transformers)
            ),
            "smollm": cases(
                tokenizers.Tokenizer.from_file(str(model / "tokenizer.json")), "smollm"
            ),
            "llama-bpe": cases(
                small_tokenizer("llama-bpe", ["<|begin_of_text|>", "<|eot_id|>"]), "llama-bpe"
            ),
            "qwen2": cases(small_tokenizer("qwen2", ["<|im_start|>", "<|im_end|>"]), "qwen2"),
            "smollm_chats": chats,
        },
    )


def logits_fixture(path):
    import torch
    import transformers

    torch.manual_seed(0)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    ids = tokenizer(TEXT.read_text(), add_special_tokens=False)["input_ids"][:PROMPT_TOKENS]
    model = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    )
    # A checkpoint that was read wrongly still gives numbers: insist on what the model is known for.
    rope = model.config.rope_parameters
    if rope["rope_theta"] != 100000.0 or rope["rope_type"] != "default":
        raise SystemExit(f"unexpected RoPE parameters: {rope}")
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0]
        doubled = model.double()(torch.tensor([ids])).logits[0]
    loss = torch.nn.functional.cross_entropy(doubled[:-1], torch.tensor(ids[1:])).item()
    if loss > 3.0:
        raise SystemExit(f"a loss of {loss:.3f} nats per token says that the checkpoint is damaged")
    positions = []
    for position in POSITIONS:
        values, tokens = torch.topk(doubled[position], LARGEST)
        positions.append(
            {
                "position": position,
                "ids": tokens.tolist(),
                "logits": [round(value, 6) for value in values.tolist()],
                "log_sum_exp": round(torch.logsumexp(doubled[position], 0).item(), 6),
            }
        )
    write(
        "smollm2_logits.json",
        {
            "made_by": f"transformers {transformers.__version__}, torch {torch.__version__}, f64",
            "model": get_model.MODEL_NAME,
            "source_sha256": get_model.MODEL_SHA256,
            "f32_against_f64": (logits.double() - doubled).abs().max().item(),
            "loss": round(loss, 6),
            "prompt_ids": ids,
            "positions": positions,
        },
    )


def main():
    python = VENV / "bin" / "python"
    if Path(sys.prefix).resolve() != VENV.resolve():
        if not (VENV / "packages.txt").exists():
            get_model.call([sys.executable, "-m", "venv", VENV], "Debian: apt install python3-venv")
            get_model.call(
                [python, "-m", "pip", "install", "--quiet", *PACKAGES], "Is the network up?"
            )
            (VENV / "packages.txt").write_text("\n".join(PACKAGES) + "\n")
        subprocess.run([sys.executable, ROOT / "scripts" / "get_model.py"], check=True)
        sys.exit(subprocess.run([python, __file__]).returncode)
    models = Path(os.environ.get("DIFFKV_MODELS", ROOT / "build" / "models"))
    tokenizer_fixture(models / get_model.MODEL_NAME)
    logits_fixture(models / get_model.MODEL_NAME)


if __name__ == "__main__":
    try:
        main()
    except get_model.ModelError as error:
        sys.exit(f"make_fixture.py: {error}")
