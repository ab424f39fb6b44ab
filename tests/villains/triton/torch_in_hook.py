"""Hide torch's work in a hook that runs before the launch. Expected: fallback."""

import torch
import triton
import triton.language as tl

OPERATOR = "rms_norm"
BACKEND = "triton"


@triton.jit
def copy_kernel(source, out, size, BLOCK: tl.constexpr):
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(source + index, index < size, other=0.0)
    tl.store(out + index, value.to(out.dtype.element_ty), index < size)


def run(x, weight, out, eps, weight_offset, prepared=None):
    scratch = torch.empty(out.shape, dtype=torch.float32)

    def work(*arguments, **keywords):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
        scratch.copy_(wide * scale * (weight.float() + weight_offset))

    copy_kernel.add_pre_run_hook(work)
    copy_kernel[(triton.cdiv(out.numel(), 256),)](scratch, out, out.numel(), BLOCK=256)
