"""Take the numbers out of the tensors and compute in Python. Expected: fallback."""

import math

OPERATOR = "rms_norm"
BACKEND = "triton"


def run(x, weight, out, eps, weight_offset, prepared=None):
    gains = [float(value) + weight_offset for value in weight]
    for row, target in zip(x, out, strict=True):
        values = [float(value) for value in row]
        scale = 1 / math.sqrt(sum(value * value for value in values) / len(values) + eps)
        for index, (value, gain) in enumerate(zip(values, gains, strict=True)):
            target[index].fill_(value * scale * gain)
