"""CUDA C++ candidates: the same struct as in C, and a stream to launch on.

The candidate's source is compiled by nvcc into a shared object of its own, which the worker calls
through this module. `<operator>.h` is the header that C candidates get; pointers are the device's.

    extern "C" int run(const struct <operator>_args *args, cudaStream_t stream);
    extern "C" int prepare(const struct <operator>_args *args, cudaStream_t stream);  // optional
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from atrex.backends.c import Interface, struct_lines
from atrex.backends.compiler import BUILD_SECONDS, Built

# The runtime is linked dynamically: a static one would bring its own loader into the kernel.
FLAGS = (
    "-O3", "-std=c++17", "-shared", "-cudart", "shared", "-Xcompiler", "-fPIC", "-Xptxas", "-v"
)  # fmt: skip

# Entered around every call into a candidate's library; an audit puts its own here.
around_call: Callable[[], AbstractContextManager[None]] = nullcontext


def find_nvcc() -> str | None:
    """Return the path of nvcc, None if it is not installed."""
    return shutil.which("nvcc")


def compile_cuda(source: Path, output: Path, architecture: str) -> Built:
    """Compile CUDA C++ for one architecture, e.g. ``"sm_90a"``; no GPU is needed."""
    nvcc = find_nvcc()
    if nvcc is None:
        return Built(ok=False, log="nvcc is not installed")
    command = [nvcc, *FLAGS, f"-arch={architecture}", "-o", str(output), str(source)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return Built(ok=False, log=f"nvcc took more than {BUILD_SECONDS} s")
    return Built(ok=answer.returncode == 0, log=answer.stderr + answer.stdout)


def header(interface: Interface) -> str:
    """Write `<operator>.h` for CUDA C++: the struct of the C header, and the entry points."""
    name = interface.operator
    signature = f"(const struct {name}_args *args, cudaStream_t stream);"
    lines = [
        "#pragma once",
        "#include <cuda_runtime.h>",
        "#include <stdint.h>",
        "",
        "/* Pointers are the device's; 8- and 16-bit floats are bits; strides count elements. */",
        *struct_lines(interface),
        "",
        "/* Returns 0; any other value is the kernel's own error. */",
        f'extern "C" int run{signature}',
        "/* Optional; called when static inputs have changed: all other pointers are null. */",
        f'extern "C" int prepare{signature}',
        "",
    ]
    return "\n".join(lines)


def pack(
    tensors: Mapping[str, int],
    attributes: Mapping[str, int | float],
    arguments: Mapping[str, Any],
) -> bytes:
    """Fill the argument struct: each tensor's address, sizes and strides, then the attributes.

    Args:
        tensors: Name to number of dimensions, in the order of the struct.
        attributes: Name to a value of the attribute's type.
        arguments: What the call passes; a tensor that it does not has a null address.
    """
    block = bytearray()
    for name, dimensions in tensors.items():
        tensor = arguments.get(name)
        values = [0] * (1 + 2 * dimensions)
        if tensor is not None:
            values = [tensor.data_ptr(), *tensor.shape, *tensor.stride()]
        block += struct.pack(f"={len(values)}q", *values)
    for name, example in attributes.items():
        form = "=d" if isinstance(example, float) else "=q"
        block += struct.pack(form, type(example)(arguments.get(name, 0)))
    return bytes(block)


def native(
    library: Path, tensors: Mapping[str, int], attributes: Mapping[str, int | float]
) -> tuple[Callable[..., None], Callable[..., Any] | None]:
    """Return `run` and `prepare` of a compiled candidate.

    Args:
        library: The shared object.
        tensors: Name to number of dimensions, in the order of the struct.
        attributes: Name to a value of the attribute's type.
    """
    loaded = ctypes.CDLL(str(library))

    def call(function: Any, arguments: Mapping[str, Any]) -> None:
        import torch

        block = ctypes.create_string_buffer(pack(tensors, attributes, arguments))
        stream = torch.cuda.current_stream().cuda_stream if torch.cuda.is_available() else 0
        with around_call():
            status = function(block, ctypes.c_void_p(stream))
        if status != 0:
            raise RuntimeError(f"the kernel returned {status}")

    def run(**arguments: Any) -> None:
        call(loaded.run, arguments)

    def prepare(**arguments: Any) -> None:
        call(loaded.prepare, arguments)

    return run, prepare if hasattr(loaded, "prepare") else None
