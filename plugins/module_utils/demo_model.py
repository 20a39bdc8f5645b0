# Copyright (c) 2026 ironwheel.gpu contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

"""The demo model: a two-layer Llama with random weights and a byte-level tokenizer, written with the standard library alone.

The same bytes come out everywhere, whatever torch or transformers an environment holds, and nothing is imported or downloaded. Eight heads let it be
split over up to eight GPUs.
"""

from __future__ import annotations

import array
import hashlib
import json
import random
import struct
import sys

VERSION = 1
STAMP_FILE = "ironwheel.json"
HIDDEN, INNER, LAYERS, HEADS, HEAD_DIM, CONTEXT = 128, 256, 2, 8, 64, 512
SPECIAL = ("<unk>", "<s>", "</s>")
UNKNOWN, BEGIN, END = range(3)


def byte_characters() -> list[str]:
    """The printable character that byte-level tokenizers write for each byte: itself where it prints, else one from 256 on."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    shifted = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(shifted)) for byte in range(256)]


def vocabulary() -> dict[str, int]:
    """Token to id: the special ones, then one for each byte."""
    return {token: index for index, token in enumerate([*SPECIAL, *byte_characters()])}


def tokenizer() -> dict:
    """``tokenizer.json``: byte-level BPE without merges."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = [
        {"id": index, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        for index, token in enumerate(SPECIAL)
    ]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": SPECIAL[UNKNOWN],
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocabulary(),
        "merges": [],
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": model,
    }


def tokenizer_config() -> dict:
    """``tokenizer_config.json``, with a chat template that keeps to plain lines."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "unk_token": SPECIAL[UNKNOWN],
        "bos_token": SPECIAL[BEGIN],
        "eos_token": SPECIAL[END],
        "chat_template": "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}assistant: ",
    }


def config() -> dict:
    """``config.json``."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": len(vocabulary()),
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "initializer_range": 0.02,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": BEGIN,
        "eos_token_id": END,
        "use_cache": True,
    }


def shapes() -> dict[str, tuple[int, ...]]:
    """Shape of each weight, in the order in which they are drawn."""
    attention = HEADS * HEAD_DIM
    words = len(vocabulary())
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (words, HIDDEN)}
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        found[f"{name}.input_layernorm.weight"] = (HIDDEN,)
        for part in ("q_proj", "k_proj", "v_proj"):
            found[f"{name}.self_attn.{part}.weight"] = (attention, HIDDEN)
        found[f"{name}.self_attn.o_proj.weight"] = (HIDDEN, attention)
        found[f"{name}.post_attention_layernorm.weight"] = (HIDDEN,)
        found[f"{name}.mlp.gate_proj.weight"] = (INNER, HIDDEN)
        found[f"{name}.mlp.up_proj.weight"] = (INNER, HIDDEN)
        found[f"{name}.mlp.down_proj.weight"] = (HIDDEN, INNER)
    found["model.norm.weight"] = (HIDDEN,)
    found["lm_head.weight"] = (words, HIDDEN)
    return found


def weights() -> bytes:
    """``model.safetensors``: float32, drawn from one seed; a norm's weights are one.

    Format: length of the header (8 bytes, little endian), the header as JSON, the tensors' bytes.
    """
    draw = random.Random(20260101).random
    header: dict[str, dict] = {"__metadata__": {"format": "pt"}}
    values = array.array("f")
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        begin = len(values) * 4
        # Uniform with a standard deviation of 0.02: only random() is promised to stay the same in every Python.
        values.extend([1.0] * count if "norm" in name else [(draw() - 0.5) * 0.0692820323 for _index in range(count)])
        if name == "lm_head.weight":
            keep_printable(values, begin // 4)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, len(values) * 4]}
    if sys.byteorder == "big":
        values.byteswap()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + values.tobytes()


def keep_printable(values: array.array, begin: int) -> None:
    """Zero the output rows of every token but the printable ASCII ones, so that a greedy answer is text.

    Their logits stay 0, and the largest of 94 random ones is above that.
    """
    for token, index in vocabulary().items():
        if len(token) != 1 or not "!" <= token <= "~":
            row = begin + index * HIDDEN
            values[row : row + HIDDEN] = array.array("f", bytes(4 * HIDDEN))


def files() -> dict[str, bytes]:
    """Every file of the model: name to content, the stamp with their hashes last."""
    found = {
        "config.json": _json(config()),
        "generation_config.json": _json({"bos_token_id": BEGIN, "eos_token_id": END}),
        "tokenizer.json": _json(tokenizer()),
        "tokenizer_config.json": _json(tokenizer_config()),
        "model.safetensors": weights(),
    }
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in found.items()}
    found[STAMP_FILE] = _json({"schema": 1, "model": "demo", "version": VERSION, "sha256": hashes})
    return found


def _json(value: dict) -> bytes:
    return (json.dumps(value, indent=1, ensure_ascii=True) + "\n").encode()
