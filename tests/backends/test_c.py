import ctypes
import platform
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from atrex.backends import BACKENDS, compiler
from atrex.backends.c import Interface, describe, header, pack, template
from atrex.operator import TensorSpec


@dataclass(frozen=True)
class Placed:
    arena: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def interface(dtype="bf16", width=4):
    return Interface(
        operator="toy",
        inputs={
            "x": TensorSpec(shape=(2, width), dtype=dtype),
            "eps": 0.5,
            "weight": TensorSpec(shape=(width,), dtype=dtype),
            "offset": 3,
        },
        outputs={"out": TensorSpec(shape=(2, width), dtype=dtype)},
    )


def machines():
    """Name the instruction sets to compile for: this machine's, its generation's, the plainest."""
    yield "-march=native"
    if platform.machine() == "x86_64" and "avx2" in Path("/proc/cpuinfo").read_text():
        yield "-march=x86-64-v3"
    yield "-O3"


def load(folder, source, toy, machine="-march=native"):
    """Compile `source` against the header and load it."""
    (folder / f"{toy.operator}.h").write_text(header(toy))
    (folder / "k.c").write_text(source)
    built = compiler.compile_c(
        compiler.find(),
        folder / "k.c",
        folder / "k.so",
        flags=(*(flag for flag in compiler.FLAGS if flag != "-march=native"), machine),
    )
    assert built.ok, built.log
    return ctypes.CDLL(str(folder / "k.so")), built.log


@pytest.fixture(scope="module", params=list(machines()))
def conversions(request, tmp_path_factory):
    """Functions that convert arrays, one element and sixteen at a time."""
    source = '#include "toy.h"\n'
    for name in ("bf16", "fp16"):
        source += f"""
        void load_{name}(const uint16_t *from, float *to, int64_t n)
        {{ for (int64_t i = 0; i < n; i++) to[i] = atrex_{name}_to_float(from[i]); }}
        void store_{name}(const float *from, uint16_t *to, int64_t n)
        {{ for (int64_t i = 0; i < n; i++) to[i] = atrex_float_to_{name}(from[i]); }}
        void load_lanes_{name}(const uint16_t *from, float *to, int64_t n)
        {{ for (int64_t i = 0; i < n; i += 16)
               atrex_lanes_to_fp32(to + i, atrex_{name}_to_lanes(from + i)); }}
        void store_lanes_{name}(const float *from, uint16_t *to, int64_t n)
        {{ for (int64_t i = 0; i < n; i += 16)
               atrex_lanes_to_{name}(to + i, atrex_fp32_to_lanes(from + i)); }}
        void stream_{name}(const float *from, uint16_t *to, int64_t n)
        {{ for (int64_t i = 0; i < n; i += 16)
               atrex_stream_{name}(to + i, atrex_fp32_to_lanes(from + i));
           atrex_stream_end(); }}
        """
    library, log = load(tmp_path_factory.mktemp("c"), source, interface(), request.param)
    assert log == ""

    def convert(name, values, result):
        out = np.empty(len(values), result)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (values, out))
        getattr(library, name)(*pointers, ctypes.c_int64(len(values)))
        return out

    return convert


ALL_BITS = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)


def floats_near_every(name):
    """Give every value of the format, and the floats at and beside the midpoints between them."""
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    exact = torch.from_numpy(ALL_BITS.copy()).view(kind).float().numpy()
    finite = np.sort(exact[np.isfinite(exact)])
    middle = ((finite[1:].astype(np.float64) + finite[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(middle, np.float32(side)) for side in (-np.inf, np.inf)]
    special = np.array([np.inf, -np.inf, 3.3e38, 65519.0, 65520.0, 1e6], np.float32)
    values = np.concatenate([finite, middle, *beside, special])
    return np.pad(values, (0, -len(values) % 16)).astype(np.float32), kind


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("width", ["load", "load_lanes"])
def test_every_half_becomes_the_float_it_stands_for(conversions, name, width):
    import torch

    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[name]
    expected = torch.from_numpy(ALL_BITS.copy()).view(kind).float().numpy()
    got = conversions(f"{width}_{name}", ALL_BITS, np.float32)
    number = ~np.isnan(expected)
    assert np.array_equal(got[number].view(np.uint32), expected[number].view(np.uint32))
    assert np.isnan(got[~number]).all()


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("width", ["store", "store_lanes", "stream"])
def test_floats_round_to_the_nearest_half_and_ties_to_even(conversions, name, width):
    import torch

    values, kind = floats_near_every(name)
    expected = torch.from_numpy(values).to(kind).view(torch.uint16).numpy()
    assert np.array_equal(conversions(f"{width}_{name}", values, np.uint16), expected)


@pytest.mark.parametrize("name", ["bf16", "fp16"])
@pytest.mark.parametrize("width", ["store", "store_lanes"])
def test_a_nan_stays_a_nan(conversions, name, width):
    bits = np.array([0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0xFF800001] * 4, np.uint32)
    got = conversions(f"{width}_{name}", bits.view(np.float32), np.uint16)
    assert np.isnan(conversions(f"load_{name}", got, np.float32)).all()


def test_packs_pointers_sizes_strides_and_attributes_in_the_order_of_the_struct():
    placed = {
        "x": Placed(1, 64, (2, 4), (6, 1)),
        "weight": Placed(0, 128, (4,), (1,)),
        "out": Placed(2, 256, (2, 4), (4, 1)),
    }
    block, relocations = pack(interface(), placed)
    assert relocations == [(0, 1, 64), (40, 0, 128), (64, 2, 256)]
    expected = (0, 2, 4, 6, 1, 0, 4, 1, 0, 2, 4, 4, 1, 0.5, 3)
    assert struct.unpack("=13qdq", block) == expected


def test_the_compiler_sees_the_struct_that_pack_fills(tmp_path):
    fields = ("x", "x_shape", "x_stride", "weight", "weight_shape", "weight_stride", "out",
              "out_shape", "out_stride", "eps", "offset")  # fmt: skip
    offsets = ", ".join(f"__builtin_offsetof(struct toy_args, {field})" for field in fields)
    source = f'#include "toy.h"\nint64_t offsets[] = {{{offsets}, sizeof(struct toy_args)}};'
    library, _ = load(tmp_path, source, interface())
    got = list((ctypes.c_int64 * 12).in_dll(library, "offsets"))
    assert got == [0, 8, 24, 40, 48, 56, 64, 72, 88, 104, 112, 120]


def test_the_header_says_which_dtype_each_tensor_has():
    text = header(interface("fp16"))
    assert "#define ATREX_DTYPE_WEIGHT_FP16 1" in text
    assert "const uint16_t *x;" in text
    assert "    uint16_t *out;" in text


def test_a_dtype_without_a_c_type_is_refused_by_name():
    with pytest.raises(ValueError, match="x: the dtype fp4 has no C type"):
        header(interface("fp4"))


def test_interfaces_of_other_sizes_share_a_signature_and_other_dtypes_do_not():
    assert interface(width=4).signature == interface(width=8).signature
    assert interface("bf16").signature != interface("fp16").signature


def test_the_template_compiles_and_runs(tmp_path):
    toy = interface("fp32")
    source = template(toy).split('SOURCE = r"""')[1].split('"""')[0]
    library, log = load(tmp_path, source, toy)
    out = np.ones((2, 4), np.float32)
    placed = {
        "x": Placed(0, 0, (2, 4), (4, 1)),
        "weight": Placed(0, 0, (4,), (1,)),
        "out": Placed(0, 0, (2, 4), (4, 1)),
    }
    block = bytearray(pack(toy, placed)[0])
    block[64:72] = struct.pack("q", out.ctypes.data)
    assert library.run(ctypes.create_string_buffer(bytes(block))) == 0
    assert out.tolist() == [[0.0] * 4] * 2
    assert log == ""


def test_the_description_shows_the_struct():
    assert "int64_t x_stride[2]; /* elements */" in describe(interface())


def test_every_backend_is_supported_somewhere_or_says_why_not():
    assert [b.name for b in BACKENDS.values() if b.supports("cpu")] == [
        "c",
        "numba",
        "torch",
        "triton",
    ]
    assert all(b.devices or b.reason for b in BACKENDS.values())
    assert all((b.flavour is None) == (not b.devices) for b in BACKENDS.values())
