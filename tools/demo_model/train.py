"""Trains the demo model; the learning rate follows the clock, not the step count.

    OPENBLAS_CORETYPE=SKYLAKEX python3 train.py --tokenizer DIR --out checkpoint.pt [--minutes 65] [--resume]

Matrices inside the layers learn with Muon (momentum, orthogonalised by
Newton-Schulz steps); embedding, head, norms and the like with AdamW.
"""

import argparse
import ctypes
import math
import os
import time

import torch
import torch.nn.functional as F

import config
import model as k3
import text
from tokenizer import Tokenizer

SEED = 1611
WINDOW = 512  # tokens scored from one fresh state at evaluation


# --- optimiser -------------------------------------------------------------------------


def orthogonalised(m, steps=5):
    """Newton-Schulz on [..., rows, cols]: singular values driven towards 1."""
    wide = m.shape[-2] <= m.shape[-1]
    x = m if wide else m.transpose(-1, -2)
    x = x / (x.flatten(-2).norm(dim=-1)[..., None, None] + 1e-7)
    for _ in range(steps):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x if wide else x.transpose(-1, -2)


class Muon:
    """One group per shape, so that each Newton-Schulz step is one batched product."""

    def __init__(self, params, lr, momentum=0.95, decay=0.05):
        self.lr, self.momentum, self.decay = lr, momentum, decay
        shapes = sorted({p.shape for p in params})
        self.groups = [[p for p in params if p.shape == shape] for shape in shapes]
        self.buffers = [[torch.zeros_like(p) for p in group] for group in self.groups]

    @torch.no_grad()
    def step(self, scale):
        lr = self.lr * scale
        for group, buffers in zip(self.groups, self.buffers):
            for p, b in zip(group, buffers):
                b.mul_(self.momentum).add_(p.grad)
            m = torch.stack([p.grad + self.momentum * b for p, b in zip(group, buffers)])
            rows, cols = m.shape[-2:]
            update = orthogonalised(m) * max(1.0, rows / cols) ** 0.5
            for p, u in zip(group, update):
                p.mul_(1 - lr * self.decay).sub_(lr * u)
                p.grad = None


def optimisers(net):
    matrices, adam = [], []
    for name, p in net.named_parameters():
        inside = name.startswith("layers.") and p.dim() >= 2 and min(p.shape[-2:]) > 4
        (matrices if inside else adam).append(p)
    tables = [net.embed_tokens.weight, net.lm_head.weight]
    rest = [p for p in adam if all(p is not t for t in tables)]
    groups = [
        {"params": tables, "peak": 4e-3, "weight_decay": 0.02},
        {"params": rest, "peak": 4e-3, "weight_decay": 0.0},
    ]
    return Muon(matrices, 0.02), torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.98), eps=1e-10)


def schedule(progress):
    """Fraction of the peak rate: short warm-up, plateau, linear fall to 1 %."""
    return min(1.0, progress / 0.01 + 0.02, max(0.01, (1 - progress) / 0.65))


# --- data --------------------------------------------------------------------------------


def batches(documents, tokens_per_step, length, generator):
    """Endless [batch, length+1] windows of the shuffled documents, each ended by [EOS]."""
    while True:
        order = torch.randperm(len(documents), generator=generator).tolist()
        stream = torch.cat([documents[i] for i in order])
        start = int(torch.randint(length, (1,), generator=generator))
        n = (len(stream) - start - 1) // length
        windows = torch.stack([stream[start + i * length : start + (i + 1) * length + 1] for i in range(n)])
        windows = windows[torch.randperm(n, generator=generator)]
        yield from windows.split(tokens_per_step // length)


def heldout_windows(tokenizer, documents):
    """Each document is scored in windows of at most 512 tokens, every window from a fresh
    state whose first input is the token before it ([EOS] at a document's start), so that
    every byte counts."""
    windows = []
    for document in documents:
        ids = [config.EOS, *tokenizer.encode(document)]
        windows += [ids[i : i + WINDOW + 1] for i in range(0, len(ids) - 1, WINDOW)]
    return windows


@torch.no_grad()
def bits_per_byte(net, windows, total_bytes):
    nll = 0.0
    net.eval()
    for i in range(0, len(windows), 8):
        part = windows[i : i + 8]
        longest = max(map(len, part))
        ids = torch.tensor([w + [config.PAD] * (longest - len(w)) for w in part])
        target = ids[:, 1:].masked_fill(ids[:, 1:] == config.PAD, -100)
        logits = net(ids[:, :-1])
        nll += F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="sum").item()
    net.train()
    return nll / math.log(2) / total_bytes


def keep_memory():
    """Tells glibc to keep freed blocks; fresh pages for each large tensor cost a third of the time."""
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(-3, 1 << 30)  # M_MMAP_THRESHOLD
        mallopt(-1, (1 << 31) - 1)  # M_TRIM_THRESHOLD
        mallopt(-2, 1 << 28)  # M_TOP_PAD
    except (OSError, AttributeError):
        pass


# --- the loop ----------------------------------------------------------------------------


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokenizer", required=True, help="folder with tiktoken.model")
    parser.add_argument("--out", required=True, help="checkpoint file")
    parser.add_argument("--minutes", type=float, default=65)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--resume", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    keep_memory()

    tokenizer = Tokenizer.load(args.tokenizer)
    train, held = text.split()
    documents = [torch.tensor([*tokenizer.encode(d), config.EOS]) for d in train]
    some = held[::4]
    quick = heldout_windows(tokenizer, some), sum(len(d.encode()) for d in some)
    full = heldout_windows(tokenizer, held), sum(len(d.encode()) for d in held)

    net = k3.Model(config.text_config())
    muon, adam = optimisers(net)
    elapsed, step, seen = 0.0, 0, 0
    if args.resume:
        state = torch.load(args.out)
        net.load_state_dict(state["model"])
        adam.load_state_dict(state["adam"])
        muon.buffers, elapsed, step, seen = state["muon"], state["elapsed"], state["step"], state["seen"]

    def save():
        state = {"model": net.state_dict(), "adam": adam.state_dict(), "muon": muon.buffers}
        torch.save({**state, "elapsed": elapsed, "step": step, "seen": seen}, args.out + ".new")
        os.replace(args.out + ".new", args.out)

    generator = torch.Generator().manual_seed(SEED + step)
    stream, stream_length = None, 0
    budget = args.minutes * 60
    saved = evaluated = logged = elapsed
    average = None
    begin = time.monotonic() - elapsed
    while elapsed < budget:
        progress = elapsed / budget
        length = 256 if progress < 0.5 else 512
        if length != stream_length:
            stream, stream_length = batches(documents, 3072, length, generator), length
        k3.Rounding.experts = progress >= 0.66
        k3.Rounding.trunk = progress >= 0.88
        scale = schedule(progress)
        for group in adam.param_groups:
            group["lr"] = group["peak"] * scale
        ids = next(stream)
        loss = F.cross_entropy(net(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        muon.step(scale)
        adam.step()
        adam.zero_grad(set_to_none=True)
        for moe in net.moe_layers():
            moe.balance(2e-3 * scale)
        step, seen = step + 1, seen + ids[:, 1:].numel()
        average = loss.item() if average is None else 0.95 * average + 0.05 * loss.item()
        elapsed = time.monotonic() - begin
        if elapsed - logged > 20 or step <= 3:
            logged = elapsed
            where = f"{elapsed / 60:.1f} min  step {step}  tokens {seen}"
            print(f"{where}  loss {average:.4f}  rate {scale:.3f}", flush=True)
        if elapsed - evaluated > 300:
            evaluated = elapsed
            print(f"    part of the held-out text: {bits_per_byte(net, *quick):.4f} bits per byte", flush=True)
        if elapsed - saved > 150:
            saved = elapsed
            save()
    k3.Rounding.experts = k3.Rounding.trunk = True
    save()
    print(f"done: held-out {bits_per_byte(net, *full):.4f} bits per byte, {seen} tokens, {step} steps", flush=True)


if __name__ == "__main__":
    main()
