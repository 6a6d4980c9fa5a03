"""Reading and writing safetensors files: 8-byte length, JSON header, raw data."""

import json
import struct

import numpy as np
import torch

TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "U8": torch.uint8, "I64": torch.int64}
NAMES = {dtype: name for name, dtype in TYPES.items()}


def data(tensor):
    """The tensor's bytes, row-major, little-endian."""
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


def header(tensors):
    """The header for these tensors, laid out in order; padded so that data start 8-aligned."""
    entries, at = {"__metadata__": {"format": "pt"}}, 0
    for name, t in tensors.items():
        end = at + t.numel() * t.element_size()
        entries[name] = {"dtype": NAMES[t.dtype], "shape": list(t.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)


def write(path, tensors):
    head = header(tensors)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for t in tensors.values():
            f.write(data(t))


def read(path):
    """{name: tensor} in the stored dtypes."""
    with open(path, "rb") as f:
        blob = f.read()
    (length,) = struct.unpack_from("<Q", blob)
    entries = json.loads(blob[8 : 8 + length])
    entries.pop("__metadata__", None)
    out = {}
    for name, e in entries.items():
        begin, end = (8 + length + offset for offset in e["data_offsets"])
        raw = torch.from_numpy(np.frombuffer(blob[begin:end], dtype=np.uint8).copy())
        out[name] = raw.view(TYPES[e["dtype"]]).reshape(e["shape"])
    return out
