"""Checkpoint -> Hugging Face folder in the layout of the Kimi K3 release.

    python3 export.py checkpoint.pt OUT_DIR     # or the word "untrained"

The tokenizer files must be (or come) in the same folder; see tokenizer.py.
"""

import glob
import json
import os
import sys

import torch

import config
import model as k3
import mxfp4
import safetensors

SHARD_BYTES = 1 << 20  # a shard file is never larger
F32_ENDINGS = (".A_log", ".dt_bias", "_conv1d.weight", ".o_norm.weight", ".e_score_correction_bias")


def release_tensors(state, c):
    """[(release name, tensor)] in layer order."""
    out = []
    for name, w in state.items():
        full = "language_model." + ("" if name.startswith("lm_head") else "model.") + name
        head, _, last = full.rpartition(".")
        if last == "load":
            continue  # a counter of the training loop
        if last in ("w1", "w2", "w3"):
            for e in range(w.shape[0]):
                packed, scale = mxfp4.pack(w[e])
                out.append((f"{head}.experts.{e}.{last}.weight_packed", packed))
                out.append((f"{head}.experts.{e}.{last}.weight_scale", scale))
            continue
        if last == "bias":
            full = head + ".gate.e_score_correction_bias"
        if last == "A_log":
            w = torch.cat([w, w.new_zeros(max(0, c["linear_attn_config"]["head_dim"] - len(w)))])
        out.append((full, w.float() if full.endswith(F32_ENDINGS) else w.bfloat16()))

    def place(item):
        name = item[0]
        if "embed_tokens" in name:
            return (0, 0)
        if ".layers." in name:
            return (1, int(name.split(".layers.")[1].split(".")[0]))
        return (2, 0)

    return sorted(out, key=place)


def shards(tensors):
    """Fills shards in order; each stays within SHARD_BYTES as a file."""
    out, used = [{}], 0
    for name, t in tensors:
        size = t.numel() * t.element_size() + len(name) + 80  # 80: the header's entry
        if used + size > SHARD_BYTES - 128:
            out.append({})
            used = 0
        out[-1][name] = t
        used += size
    return out


def export(state, directory):
    os.makedirs(directory, exist_ok=True)
    for old in glob.glob(os.path.join(directory, "model*.safetensors*")):
        os.remove(old)
    c = config.config()
    parts = shards(release_tensors(state, c["text_config"]))
    index, total = {}, 0
    for i, part in enumerate(parts, 1):
        name = f"model-{i:05d}-of-{len(parts):05d}.safetensors"
        safetensors.write(os.path.join(directory, name), part)
        assert os.path.getsize(os.path.join(directory, name)) <= SHARD_BYTES
        index.update(dict.fromkeys(part, name))
        total += sum(t.numel() * t.element_size() for t in part.values())
    for name, value in (
        ("config.json", c),
        ("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index}),
    ):
        with open(os.path.join(directory, name), "w") as f:
            json.dump(value, f, indent=1)
            f.write("\n")
    print(f"{len(index)} tensors, {total} bytes, {len(parts)} shards")


if __name__ == "__main__":
    if sys.argv[1] == "untrained":
        export(k3.Model(config.text_config()).state_dict(), sys.argv[2])
    else:
        export(torch.load(sys.argv[1], map_location="cpu")["model"], sys.argv[2])
