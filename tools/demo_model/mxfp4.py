"""MXFP4: 4-bit floats, one power-of-two scale for each 32 weights of a row."""

import torch

GROUP = 32
LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


def _scaled(w):
    """Weights [..., cols] as groups [..., cols/32, 32] in units of their scale, and the
    scales' biased exponents.  The scale is the smallest power of two for which the
    largest weight is at most 7 (it then rounds to 6 at the worst)."""
    groups = w.reshape(*w.shape[:-1], -1, GROUP)
    largest = groups.abs().amax(-1, keepdim=True)
    exponent = torch.ceil(torch.log2(largest.clamp(min=2.0**-100) / 7))
    return groups * torch.exp2(-exponent), exponent


def _round(x):
    """Nearest level (ties to even)."""
    a = x.abs()
    step = torch.where(a < 2, 0.5, torch.where(a < 4, 1.0, 2.0))
    return ((a / step).round() * step).clamp(max=6.0) * x.sign()


def fake(w):
    """The values that the export will store."""
    x, exponent = _scaled(w)
    return (_round(x) * torch.exp2(exponent)).reshape(w.shape)


def pack(w):
    """Matrix [rows, cols] -> (packed U8 [rows, cols/2], scales U8 [rows, cols/32])."""
    x, exponent = _scaled(w)
    x = _round(x).reshape(w.shape)
    code = torch.searchsorted(LEVELS, x.abs().contiguous()) + 8 * (x < 0)
    packed = code[:, 0::2] + 16 * code[:, 1::2]
    return packed.to(torch.uint8), (exponent.squeeze(-1) + 127).to(torch.uint8)


def unpack(packed, scale):
    """The matrix that pack() stored, f32."""
    packed = packed.to(torch.int64)
    code = torch.stack([packed & 15, packed >> 4], -1).flatten(-2)
    value = LEVELS[code & 7] * (1 - 2 * (code >> 3))
    groups = value.reshape(*value.shape[:-1], -1, GROUP)
    return (groups * torch.exp2(scale.float() - 127)[..., None]).reshape(value.shape)
