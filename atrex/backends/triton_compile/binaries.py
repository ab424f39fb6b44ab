"""What a compiled kernel uses, read from the compiler's messages and the machine code."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from atrex.backends.triton_compile.targets import Target
from atrex.model import Record

DISASSEMBLE_S = 60.0  # 0.3 s was seen for 100 kB of code, most of it to start
# Tensor cores by family: HMMA (sm_80), HGMMA and QGMMA (sm_90), UTCHMMA and UTCQMMA (sm_100).
NVIDIA_TENSOR_CORE = re.compile(r"[A-Z]+MMA")
# Copies to shared memory that no register waits for: by threads, and in bulk by the TMA.
NVIDIA_COPY = re.compile(r"LDGSTS|UBLKCP|UTMALDG|UTMASTG|UTMAREDG")
AMD_TENSOR_CORE = re.compile(r"v_s?mfmac?_\w+")
AMD_COPY = re.compile(r"global_load_lds_\w+")
_SASS = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?\w+\s+)?([A-Z][A-Z0-9_]*)")
_GCN = re.compile(r"^\s+([a-z]+_\w+)(.*)$", re.MULTILINE)
_DWORDS = re.compile(r"_dword(?:x(\d))?$")


class Resources(Record, frozen=True, kw_only=True):
    """What one thread and one block of a kernel use.

    Attributes:
        registers: Of a thread; vector registers on AMD.
        spill_store_bytes, spill_load_bytes: Moved by a thread's instructions that spill.
        tensor_core: Instructions in the code by family.
        async_copies: Asynchronous copies in the code by kind.
    """

    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    tensor_core: dict[str, int]
    async_copies: dict[str, int]


def resources(target: Target, code: Mapping[str, Any], messages: str) -> Resources:
    """Read a kernel's use of registers and units.

    Args:
        target: What it is compiled for.
        code: Triton's stages by name: ``cubin``, or ``amdgcn``.
        messages: What the assembler printed.
    """
    if target.backend == "hip":
        return _amd(code["amdgcn"])
    return _nvidia(messages, _disassembled(code["cubin"]))


def _nvidia(messages: str, opcodes: Iterable[str]) -> Resources:
    """Read the messages of `ptxas -v`; a kernel's functions are counted with it."""
    opcodes = list(opcodes)
    return Resources(
        registers=max(_numbers(r"Used (\d+) registers", messages)),
        spill_store_bytes=sum(_numbers(r"(\d+) bytes spill stores", messages)),
        spill_load_bytes=sum(_numbers(r"(\d+) bytes spill loads", messages)),
        tensor_core=_count(opcodes, NVIDIA_TENSOR_CORE),
        async_copies=_count(opcodes, NVIDIA_COPY),
    )


def _disassembled(cubin: bytes) -> list[str]:
    """Return the opcodes of a cubin, in order."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        answer = subprocess.run(
            [_tool("nvdisasm"), "-c", "--no-dataflow", file.name],
            capture_output=True,
            text=True,
            timeout=DISASSEMBLE_S,
            check=True,
        )
    return _SASS.findall(answer.stdout)


def _tool(name: str) -> str:
    """Return a tool that comes with Triton."""
    spec = importlib.util.find_spec("triton")
    if spec is None or spec.origin is None:
        raise FileNotFoundError("triton")
    return str(Path(spec.origin).parent / "backends/nvidia/bin" / name)


def _amd(text: str) -> Resources:
    """Read assembly; spills are what moves between registers and scratch."""
    lines = _GCN.findall(text)
    opcodes = [opcode for opcode, _ in lines]
    direct = [opcode for opcode, rest in lines if "buffer_load" in opcode and " lds" in rest]
    return Resources(
        registers=max(_numbers(r"\.vgpr_count:\s+(\d+)", text)),
        spill_store_bytes=sum(_scratch_bytes(opcodes, "scratch_store")),
        spill_load_bytes=sum(_scratch_bytes(opcodes, "scratch_load")),
        tensor_core=_count(opcodes, AMD_TENSOR_CORE),
        async_copies=_count(opcodes, AMD_COPY) | dict(Counter(direct)),
    )


def _scratch_bytes(opcodes: Iterable[str], prefix: str) -> Iterable[int]:
    for opcode in opcodes:
        if opcode.startswith(prefix):
            words = _DWORDS.search(opcode)
            yield 4 * int(words[1] or 1) if words else 4  # narrower ones fill a word all the same


def _numbers(pattern: str, text: str) -> list[int]:
    return [int(number) for number in re.findall(pattern, text)]


def _count(opcodes: Iterable[str], wanted: re.Pattern[str]) -> dict[str, int]:
    found = Counter(opcode for opcode in opcodes if wanted.fullmatch(opcode))
    return dict(sorted(found.items()))
