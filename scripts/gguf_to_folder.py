# SPDX-FileCopyrightText: 2026 The diffkv authors
# SPDX-License-Identifier: Apache-2.0
"""Turns a GGUF file of the llama or qwen2 architecture into a Hugging Face model folder.

The packages (gguf, numpy, safetensors, tokenizers) are imported where they are used, so that the
rules above them can be tested with plain Python.

Element type of the weights: f16. Dequantised values are products of an f16 scale and a small
integer, so f16 keeps them to 2e-4 of their size where bf16 would keep 1.4e-3. A tensor that is
bf16 in the file stays bf16, one with a value beyond f16's range becomes bf16, and a vector (norms,
biases) that f16 does not hold exactly stays f32.
"""

import json
import math
import struct

from gguf_tokenizer import (
    UNUSED,
    Refused,
    special_id,
    stop_ids,
    tokenizer_config_json,
    tokenizer_json,
)

ARCHITECTURES = {
    "llama": ("LlamaForCausalLM", "llama"),
    "qwen2": ("Qwen2ForCausalLM", "qwen2"),
}

# GGUF name inside a block -> Hugging Face name inside a layer.
LAYER_TENSORS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
MODEL_TENSORS = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


def tensor_name(name):
    """The Hugging Face name of a GGUF tensor, None for one that is not a weight."""
    if name == "rope_freqs.weight":
        return None
    if name in MODEL_TENSORS:
        return MODEL_TENSORS[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[1].isdigit():
        if parts[2] in LAYER_TENSORS and parts[3] in ("weight", "bias"):
            return f"model.layers.{int(parts[1])}.{LAYER_TENSORS[parts[2]]}.{parts[3]}"
    raise Refused(f"tensor {name} belongs to no llama or qwen2 model that is known here")


def rope_row_order(num_heads, head_dim):
    """Which GGUF row becomes each Hugging Face row of a llama model's q or k projection.

    GGUF rotates neighbours: per head the rows are [head_dim / 2, 2]. Hugging Face rotates halves:
    [2, head_dim / 2].
    """
    half = head_dim // 2
    return [
        head * head_dim + 2 * pair + part
        for head in range(num_heads)
        for part in range(2)
        for pair in range(half)
    ]


def llama3_rope_factors(theta, head_dim, factor, low, high, original):
    """By how much Llama 3.1 divides the frequency of each pair; what rope_freqs.weight holds."""
    factors = []
    for pair in range(head_dim // 2):
        turns = original * theta ** (-2.0 * pair / head_dim) / (2 * math.pi)
        if turns > high:
            factors.append(1.0)
        elif turns < low:
            factors.append(factor)
        else:
            keep = (turns - low) / (high - low)
            factors.append(1.0 / ((1.0 - keep) / factor + keep))
    return factors


def rope_scaling(fields, arch, theta, head_dim, rope_freqs):
    """The rope_scaling entry of config.json, None without scaling."""
    kind = fields.get(f"{arch}.rope.scaling.type", "none")
    factor = float(
        fields.get(f"{arch}.rope.scaling.factor", fields.get(f"{arch}.rope.scale_linear", 1.0))
    )
    if rope_freqs is not None:
        # The file keeps the result of the rule, not the rule. All Llama 3.1 to 3.3 models share
        # these three constants; the factor is the largest division.
        rule = {
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        factor = max(rope_freqs)
        expected = llama3_rope_factors(theta, head_dim, factor, *rule.values())
        if len(expected) != len(rope_freqs) or any(
            abs(a - b) > 1e-3 * b for a, b in zip(rope_freqs, expected)
        ):
            raise Refused("rope_freqs.weight does not follow the scaling rule of Llama 3.1")
        return {"rope_type": "llama3", "factor": factor, **rule}
    if kind == "linear" or (kind == "none" and f"{arch}.rope.scale_linear" in fields):
        return {"rope_type": "linear", "factor": factor} if factor != 1.0 else None
    if kind != "none":
        raise Refused(
            f"{arch}.rope.scaling.type is {kind!r}; only none, linear and Llama 3.1's are known"
        )
    return None


def integer(fields, key, default=None):
    value = fields.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 31:
        raise Refused(
            f"{key} is {'missing' if value is None else repr(value)}, not a positive integer"
        )
    return value


def config_json(fields, names, vocab_size, rope_freqs):
    """config.json from GGUF fields, the set of tensor names and the rows of the embedding."""
    arch = fields.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise Refused(f"general.architecture is {arch!r}; llama and qwen2 are known")
    if fields.get(f"{arch}.expert_count", 0):
        raise Refused(f"a mixture of experts ({arch}.expert_count) is not known here")
    hidden = integer(fields, f"{arch}.embedding_length")
    q_heads = integer(fields, f"{arch}.attention.head_count")
    head_dim = integer(fields, f"{arch}.attention.key_length", hidden // q_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if integer(fields, f"{arch}.{key}", head_dim) != head_dim:
            raise Refused(f"{arch}.{key} differs from the key length {head_dim}")
    qkv_bias = "blk.0.attn_q.bias" in names
    if arch == "llama" and qkv_bias and "blk.0.attn_output.bias" not in names:
        raise Refused("a llama model with biases on q, k, v alone has no Hugging Face form")
    if arch == "qwen2" and not qkv_bias:
        raise Refused("blk.0.attn_q.bias is missing, which every qwen2 model has")
    theta = float(fields.get(f"{arch}.rope.freq_base", 10000.0))
    epsilon = fields.get(f"{arch}.attention.layer_norm_rms_epsilon")
    if epsilon is None:
        raise Refused(f"{arch}.attention.layer_norm_rms_epsilon is missing")
    config = {
        "architectures": [ARCHITECTURES[arch][0]],
        "model_type": ARCHITECTURES[arch][1],
        "hidden_size": hidden,
        "intermediate_size": integer(fields, f"{arch}.feed_forward_length"),
        "num_hidden_layers": integer(fields, f"{arch}.block_count"),
        "num_attention_heads": q_heads,
        "num_key_value_heads": integer(fields, f"{arch}.attention.head_count_kv", q_heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": integer(fields, f"{arch}.context_length"),
        # GGUF keeps f32: 1e-5 comes back as 9.999999747e-06 without rounding to 7 digits.
        "rms_norm_eps": float(f"{epsilon:.7g}"),
        "rope_theta": float(f"{theta:.7g}"),
        "rope_scaling": rope_scaling(fields, arch, theta, head_dim, rope_freqs),
        "tie_word_embeddings": "output.weight" not in names,
        "vocab_size": vocab_size,
        "torch_dtype": "float16",
        "bos_token_id": special_id(fields, "bos"),
        "eos_token_id": special_id(fields, "eos"),
        "pad_token_id": special_id(fields, "padding"),
    }
    if arch == "llama":
        config["attention_bias"] = qkv_bias
        config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    return config


def to_storage(values, source_type):
    """(name of the element type, little-endian array) of f32 values; see the top of this file."""
    import numpy

    half = None
    if source_type != "BF16":
        with numpy.errstate(over="ignore"):
            half = values.astype("<f2")
        if not numpy.isfinite(half).all():
            if not numpy.isfinite(values).all():
                raise Refused("holds values that are not finite")
            half = None
        elif values.ndim == 1 and not numpy.array_equal(half.astype(numpy.float32), values):
            return "F32", values.astype("<f4")
    if half is not None:
        return "F16", half
    bits = values.view(numpy.uint32).astype(numpy.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return "BF16", rounded.astype("<u2")


def write_weights(reader, arch, config, path):
    """Writes model.safetensors one tensor at a time, so that memory holds one tensor."""
    import gguf
    import numpy

    # The header comes first but types are known last: reserve its room with the longest spelling.
    named = {}
    for tensor in reader.tensors:
        name = tensor_name(tensor.name)
        if name in named:
            raise Refused(f"tensor {tensor.name} stands twice")
        if name is not None:
            named[name] = tensor
    shapes = {name: [int(n) for n in reversed(tensor.shape)] for name, tensor in named.items()}
    room = 4096 + sum(len(name) + 160 for name in named)
    room += -(8 + room) % 64  # the data then starts at a cache line
    header, offset, squares, losses = {"__metadata__": {"format": "pt"}}, 0, 0.0, 0.0
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", room) + b" " * room)
        for name, tensor in sorted(named.items()):
            try:
                values = gguf.dequantize(tensor.data, tensor.tensor_type).reshape(shapes[name])
            except (ValueError, NotImplementedError) as error:
                kind = tensor.tensor_type.name
                raise Refused(f"tensor {tensor.name} of type {kind}: {error}") from error
            values = numpy.ascontiguousarray(values, dtype=numpy.float32)
            for projection, heads in (("q", "num_attention_heads"), ("k", "num_key_value_heads")):
                if arch == "llama" and f".{projection}_proj." in name:
                    order = rope_row_order(config[heads], config["head_dim"])
                    if len(order) != shapes[name][0]:
                        raise Refused(
                            f"tensor {tensor.name} has {shapes[name][0]} rows, not {len(order)}"
                        )
                    values = values[order]
            try:
                kind, stored = to_storage(values, tensor.tensor_type.name)
            except Refused as error:
                raise Refused(f"tensor {tensor.name} {error}") from error
            if kind == "F16":
                squares += float(numpy.square(values, dtype=numpy.float64).sum())
                losses += float(
                    numpy.square(values - stored.astype(numpy.float32), dtype=numpy.float64).sum()
                )
            file.write(stored.tobytes())
            header[name] = {
                "dtype": kind,
                "shape": shapes[name],
                "data_offsets": [offset, offset + stored.nbytes],
            }
            offset += stored.nbytes
        text = json.dumps(header, separators=(",", ":")).encode()
        if len(text) > room:
            raise Refused("the header of model.safetensors does not fit its room")
        file.seek(8)
        file.write(text)
    return math.sqrt(losses / squares) if squares else 0.0


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def open_gguf(path):
    import gguf

    with open(path, "rb") as file:
        start = file.read(8)
    if len(start) < 8 or start[:4] != b"GGUF":
        raise Refused("not a GGUF file")
    try:
        reader = gguf.GGUFReader(path)
        fields = {key: field.contents() for key, field in reader.fields.items()}
    except Exception as error:  # whatever a damaged file provokes in the reader
        raise Refused(
            f"the GGUF file is damaged (download it again) or of an unknown version ({error})"
        ) from error
    # The reader gives each tensor the bytes that its own shape asks for, whosever they are.
    end = 0
    for tensor in sorted(reader.tensors, key=lambda tensor: tensor.data_offset):
        if not 1 <= len(tensor.shape) <= 4 or tensor.data_offset < end:
            raise Refused(f"the GGUF file is damaged: tensor {tensor.name} overlaps another")
        end = int(tensor.data_offset) + int(tensor.n_bytes)
    return reader, fields


def convert(path, folder):
    """Fills `folder`, which exists and is empty. Raises Refused with the reason."""
    import safetensors
    import tokenizers

    reader, fields = open_gguf(path)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    for name in ("token_embd.weight", "output_norm.weight"):
        if name not in tensors:
            raise Refused(f"tensor {name} is missing")
    rope_freqs = tensors.get("rope_freqs.weight")
    if rope_freqs is not None:
        rope_freqs = [float(value) for value in rope_freqs.data.reshape(-1)]
    vocab_size = int(tensors["token_embd.weight"].shape[1])
    tokenizer = tokenizer_json(fields)
    config = config_json(fields, tensors.keys(), vocab_size, rope_freqs)
    if len(fields["tokenizer.ggml.tokens"]) > vocab_size:
        raise Refused("the vocabulary has more tokens than the embedding has rows")
    generation = {"bos_token_id": config["bos_token_id"], "eos_token_id": stop_ids(fields)}
    if config["pad_token_id"] is not None:
        generation["pad_token_id"] = config["pad_token_id"]

    write_json(folder / "tokenizer.json", tokenizer)
    write_json(
        folder / "tokenizer_config.json",
        tokenizer_config_json(fields, config["max_position_embeddings"]),
    )
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", generation)
    loss = write_weights(
        reader, fields["general.architecture"], config, folder / "model.safetensors"
    )
    print(f"weights kept as f16 to a relative error of {loss:.1e} (root mean square)")

    # Read back what was written with the libraries of record.
    reread = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    for index, token in enumerate(fields["tokenizer.ggml.tokens"]):
        if (
            fields["tokenizer.ggml.token_type"][index] != UNUSED
            and reread.token_to_id(token) != index
        ):
            raise Refused(f"token {index} ({token!r}) lost its id in tokenizer.json")
    with safetensors.safe_open(folder / "model.safetensors", "np") as weights:
        names = set(weights.keys())
    for layer in range(config["num_hidden_layers"]):
        for part in LAYER_TENSORS.values():
            if f"model.layers.{layer}.{part}.weight" not in names:
                raise Refused(f"layer {layer} lacks {part}")
