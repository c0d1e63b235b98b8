# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Model folders of a few hundred kilobytes, with the standard library alone, for program_test.py."""

import array
import json
import random
import struct
import sys

CONTROL = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258}
NUM_TOKENS = 259
VOCAB = 264  # the output matrix has more rows than there are tokens, as published ones often have
HIDDEN = VOCAB  # so that an embedding can be one-hot
LAYERS, Q_HEADS, HEADS, HEAD_DIM, INTERMEDIATE = 2, 2, 1, 32, 16
ON_GPU = (3, 1, 64)  # q_heads, heads, head_dim that a program for a GPU has code for as a rule
CONTEXT = 512
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def byte_letters():
    """The 256 letters of the byte alphabet, in the order of their bytes."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte if byte in shown else next(others)) for byte in range(256)]


def tokenizer():
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                  "use_regex": True}  # fmt: skip
    added = [
        {"id": id, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for text, id in CONTROL.items()
    ]  # fmt: skip
    return {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "byte_fallback": False,
                  "ignore_merges": False, "merges": [],
                  "vocab": {letter: byte for byte, letter in enumerate(byte_letters())}},
    }  # fmt: skip


def config(heads=(Q_HEADS, HEADS, HEAD_DIM)):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "head_dim": heads[2],
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
        "torch_dtype": "float32",
        "bos_token_id": 257,
        "eos_token_id": 258,
    }


def one_hot(pairs, rows, columns, value):
    """[rows, columns] with `value` at each (row, column) of `pairs`."""
    data = array.array("f", bytes(4 * rows * columns))
    for row, column in pairs:
        data[row * columns + column] = value
    return data


def weights(successor=None, sharpness=1.0, seed=1, heads=(Q_HEADS, HEADS, HEAD_DIM)):
    """Tensors by name: (shape, array of f32). With `successor` the model says successor(token) after
    each token, whatever came before: attention runs but does not count. Without, all is random."""
    rng = random.Random(seed)

    def noise(*shape):
        count = 1
        for size in shape:
            count *= size
        return list(shape), array.array("f", (rng.uniform(-0.25, 0.25) for _ in range(count)))

    def ones(size):
        return [size], array.array("f", [1.0] * size)

    q, kv = heads[0] * heads[2], heads[1] * heads[2]
    tensors = {"model.norm.weight": ones(HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}."
        tensors |= {
            name + "input_layernorm.weight": ones(HIDDEN),
            name + "post_attention_layernorm.weight": ones(HIDDEN),
            name + "self_attn.q_proj.weight": noise(q, HIDDEN),
            name + "self_attn.k_proj.weight": noise(kv, HIDDEN),
            name + "self_attn.v_proj.weight": noise(kv, HIDDEN),
            name + "self_attn.o_proj.weight": noise(HIDDEN, q),
            name + "mlp.gate_proj.weight": noise(INTERMEDIATE, HIDDEN),
            name + "mlp.up_proj.weight": noise(INTERMEDIATE, HIDDEN),
            name + "mlp.down_proj.weight": noise(HIDDEN, INTERMEDIATE),
        }
        if successor:
            for part, size in [("self_attn.o_proj", HIDDEN * q),
                               ("mlp.down_proj", HIDDEN * INTERMEDIATE)]:  # fmt: skip
                tensors[f"{name}{part}.weight"][1][:] = array.array("f", bytes(4 * size))
    shape = [VOCAB, HIDDEN]
    if successor:
        tokens = range(NUM_TOKENS)
        tensors["model.embed_tokens.weight"] = shape, one_hot([(t, t) for t in tokens], *shape, 1.0)
        said = [(successor(t), t) for t in tokens]
        tensors["lm_head.weight"] = shape, one_hot(said, *shape, sharpness)
    else:
        tensors["model.embed_tokens.weight"] = noise(*shape)
        tensors["lm_head.weight"] = noise(*shape)
    return tensors


def write_safetensors(file, tensors, dtype="F32"):
    header, data, offset = {}, [], 0
    for name, (shape, values) in tensors.items():
        values = array.array("f", values)
        if sys.byteorder == "big":
            values.byteswap()
        data.append(values.tobytes())
        end = offset + len(data[-1])
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data))


def make_folder(folder, tensors, stop_ids=(258,), bos=False, template=CHATML,
                heads=(Q_HEADS, HEADS, HEAD_DIM)):  # fmt: skip
    """A whole model folder. @return the folder"""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config(heads)))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": list(stop_ids)}))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    settings = {"add_bos_token": bos, "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    if template:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
