"""One form for the names of all compilers and profilers."""

import pytest

from atrex.trace.names import normalise_kernel, normalise_op


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void vllm::rms_norm_kernel<c10::BFloat16, 8, 2>(c10::BFloat16*, long, float)",
            "vllm::rms_norm_kernel<bf16, 8, 2>",
        ),
        (
            "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
            "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, int)",
            "vllm::fused_add_rms_norm_kernel<bf16, 8>",
        ),
        (
            "void (anonymous namespace)::store_kvcache<2048l, 4, false, long>("
            "(anonymous namespace)::StoreKVCacheParams)",
            "store_kvcache<2048l, 4, false, long>",
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::neg_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#2}::operator()() const, std::array<char*, 2ul> >"
            "(int, std::array<char*, 2ul>)",
            "at::native::vectorized_elementwise_kernel<4, at::native::neg_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#2}::operator()() const, std::array<char*, 2ul>>",
        ),
        (
            "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi64ELi8ELb0ELb0ELb1ELi1EEEv"
            "PT0_PT_PfS4_S4_S4_diiiiiiib",
            "aiter::add_rmsnorm_quant_kernel<bf16, bf16, 64, 8, false, false, true, 1>",
        ),
        (
            "_ZN7sgl_hip10activation18act_and_mul_kernelI14__hip_bfloat16TnPFT_RKS3_E"
            "XadL_Z4siluIS2_ES3_S5_EEEEvPS3_PS4_i",
            "sgl_hip::activation::act_and_mul_kernel<bf16, silu<S2_>>",
        ),
        (
            "_ZN2ck6device12_GLOBAL__N_14convILNS_4KindE7ELin1ENS_5TupleIJEEEEEvT_",
            "ck::device::conv<(S_::Kind)7, -1, S_::Tuple<>>",
        ),
        ("_Z6squarePfi", "square"),
        ("_Z5scaleIfLi4EEvPT_", "scale<float, 4>"),
        ("_fwd_kernel_0d1d2de3de", "_fwd_kernel"),
        ("triton_poi_fused_add_0", "triton_poi_fused_add"),
        ("triton_red_fused_add_mean_pow_2_17", "triton_red_fused_add_mean_pow_2"),
        ("triton_poi_fused_3", "triton_poi_fused"),
        ("triton_mine_fused_add_0", "triton_mine_fused_add_0"),
        ("Cijk_Alik_Bljk_BBS_BH.kd", "Cijk_Alik_Bljk_BBS_BH"),
        ("mine_0123456789abcdef0", "mine"),
        ("mine.0f1e2d3c4b5a69788796a5b4c3d2e1f0", "mine"),
        ("mine_1234567890123456", "mine_1234567890123456"),  # no hash: no letters
        ("mine_deadbeefdeadbeef", "mine_deadbeefdeadbeef"),
        ("mine.llvm.1234567890", "mine"),
        ("void f<int>(int) [clone .constprop.0]", "f<int>"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
         "ncclDevKernel_AllGather_RING_LL"),
        ("", ""),
    ],
)  # fmt: skip
def test_left_are_the_qualified_name_and_its_template_arguments(name, expected):
    assert normalise_kernel(name) == expected


@pytest.mark.parametrize(
    ("nsight", "expected"),
    [
        (
            "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int)",
            "at::native::vectorized_layer_norm_kernel<float, float, false>",
        ),
        (
            "void f<(int)128, (unsigned long)3, (long)-4, (unsigned int)2, (bool)1, (Kind)5>(int)",
            "f<128, 3ul, -4l, 2u, true, (Kind)5>",
        ),
        (
            "void at::native::elementwise_kernel<(int)128, void at::native::gpu_kernel_impl<"
            "at::native::copy_kernel(at::TensorIteratorBase &)::[lambda() (instance 3)]::"
            "operator ()() const::[lambda(float) (instance 1)]>(at::TensorIteratorBase &, const "
            "T1 &)::[lambda(int) (instance 1)]>(int, T3)",
            "at::native::elementwise_kernel<128, at::native::gpu_kernel_impl<"
            "at::native::copy_kernel(at::TensorIteratorBase&)::{lambda()#3}::"
            "operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, const "
            "T1&)::{lambda(int)#1}>",
        ),
    ],
)
def test_the_spelling_of_nsight_is_unified(nsight, expected):
    assert normalise_kernel(nsight) == expected


@pytest.mark.parametrize(
    ("spelt", "dtype"),
    [
        ("__nv_bfloat16", "bf16"), ("__hip_bfloat16", "bf16"), ("c10::BFloat16", "bf16"),
        ("std::bfloat16_t", "bf16"), ("cutlass::bfloat16_t", "bf16"), ("__half", "fp16"),
        ("half", "fp16"), ("cutlass::half_t", "fp16"), ("c10::Float8_e4m3fn", "fp8_e4m3"),
        ("__nv_fp8_e4m3", "fp8_e4m3"), ("c10::Float8_e4m3fnuz", "fp8_e4m3fnuz"),
        ("__hip_fp8_e4m3_fnuz", "fp8_e4m3fnuz"), ("c10::Float8_e5m2", "fp8_e5m2"),
        ("my::half", "my::half"), ("halfway", "halfway"), ("float", "float"),
    ],
)  # fmt: skip
def test_a_dtype_has_one_spelling(spelt, dtype):
    assert normalise_kernel(f"void k<{spelt}, 8>({spelt}*)") == f"k<{dtype}, 8>"


def test_a_name_beyond_the_grammar_keeps_its_identifiers():
    name = "_ZN3lib6kernelIXsrN4Some5TraitE1vELi12EN5other6marlinEEEvT_"
    assert normalise_kernel(name) == "lib::kernel<Some, Trait, v, 12, other, marlin>"


@pytest.mark.parametrize(
    "name", ["_Z", "_ZN", "_ZN5aiter", "_ZN5aiterI", "_Z9", "_ZN3fooILi", "_ZNSt"]
)
def test_a_cut_name_does_not_raise(name):
    assert isinstance(normalise_kernel(name), str)


def test_suffixes_that_change_from_run_to_run_are_stripped():
    assert normalise_op("sglang_profiler::mha_167") == "sglang_profiler::mha"
    assert normalise_op("aten::mm_2") == "aten::mm_2"
