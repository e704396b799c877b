"""The suites of the `onnx` package."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

pytest.importorskip("onnx", reason="the package onnx is not installed")

from plugins.ocannl_onnx.tests.node_cases import compare, data_sets, load_cases, only, run_case
from tests.support.slow import long

SAMPLE = [
    "add_bcast",
    "mul_uint8",
    "div_int16",
    "mod_mixed_sign_int32",
    "pow_types_float32_int64",
    "bitshift_left_uint8",
    "clip_default_inbounds",
    "cast_FLOAT_to_BFLOAT16",
    "cast_FLOAT_to_FLOAT8E4M3FNUZ",
    "cast_FLOAT_to_FLOAT4E2M1",
    "cast_INT4_to_FLOAT",
    "cast_no_saturate_FLOAT_to_FLOAT8E5M2",
    "bitcast_float32_to_int32",
    "where_example",
    "reduce_sum_negative_axes_keepdims_example",
    "reduce_max_empty_set",
    "argmax_default_axis_example_select_last_index",
    "cumsum_1d_exclusive",
    "top_k_smallest",
    "reshape_zero_and_negative_dim",
    "slice_neg_steps",
    "split_variable_parts_2d_opset18",
    "wrap_pad",
    "center_crop_pad_crop_and_pad",
    "gather_negative_indices",
    "gather_elements_1",
    "gathernd_example_int32_batch_dim1",
    "scatter_elements_with_reduction_min",
    "scatternd_max",
    "onehot_negative_indices",
    "matmul_bcast",
    "gemm_all_attributes",
    "einsum_batch_matmul",
    "conv_with_strides_and_asymmetric_padding",
    "convtranspose_output_shape",
    "basic_deform_conv_with_padding",
    "maxpool_2d_ceil",
    "averagepool_2d_pads_count_include_pad",
    "maxpool_with_argmax_2d_precomputed_pads",
    "maxunpool_export_with_output_shape",
    "col2im_pads",
    "batchnorm_example_training_mode",
    "layer_normalization_2d_axis1",
    "group_normalization_example",
    "lrn",
    "rms_normalization_3d_axis1_epsilon",
    "quantizelinear_axis",
    "dequantizelinear_blocked",
    "qlinearconv",
    "qlinearmatmul_2D_int8_float32",
    "convinteger_with_padding",
    "dynamicquantizelinear",
    "lstm_with_peepholes",
    "gru_seq_length",
    "simple_rnn_batchwise",
    "resize_upsample_sizes_cubic",
    "resize_tf_crop_and_resize",
    "gridsample_reflection_padding",
    "roialign_aligned_false",
    "dft",
    "stft_with_window",
    "hannwindow",
    "melweightmatrix",
    "attention_3d_with_past_and_present",
    "rotary_embedding",
    "linear_attention_gated_delta",
    "loop11",
    "scan9_sum",
    "if_seq",
    "sequence_map_add_2_sequences",
    "optional_get_element_sequence",
    "loop16_seq_none",
    "nonmaxsuppression_suppress_by_IOU",
    "unique_sorted_with_axis",
    "ai_onnx_ml_tree_ensemble_set_membership",
    "ai_onnx_ml_label_encoder_tensor_mapping",
    "strnormalizer_export_monday_casesensintive_lower",
    "string_split_maxsplit",
    "adam",
    "momentum",
    "adagrad_multiple",
    "sce_mean_weight_ii_3d",
    "nllloss_NCd1d2",
    "bernoulli",
    "image_decoder_decode_png_rgb",
]
SIZED_BY_DATA = [
    "compress_0",
    "compress_default_axis",
    "compress_negative_axis",
    "nonmaxsuppression_center_point_box_format",
    "nonmaxsuppression_flipped_coordinates",
    "nonmaxsuppression_iou_threshold_boundary",
    "nonmaxsuppression_limit_output_size",
    "nonmaxsuppression_suppress_by_IOU_and_scores",
    "nonmaxsuppression_two_batches",
    "nonmaxsuppression_two_classes",
    "nonzero_example",
    "unique_length_1",
    "unique_sorted_without_axis",
]
OF_DATA = {"X", "input", "condition", "boxes", "scores"}
"""Inputs that are tensors, whose values no result knows when the graph is read."""


NOT_THERE = {"bernoulli": "refused"}
"""Cases whose operators are refused."""


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    with only([f"test_{name}" for name in (*SAMPLE, *SIZED_BY_DATA)]):
        return load_cases("node")


@pytest.mark.parametrize("name", SAMPLE)
def test_a_sample_of_the_node_cases_agrees(name: str, cases: dict[str, Any]) -> None:
    found = run_case(cases[f"test_{name}"], "interp")
    assert found.status == NOT_THERE.get(name, "agrees"), found.reason


@pytest.mark.parametrize("name", SIZED_BY_DATA)
def test_sizes_follow_from_data_at_run_time(name: str, cases: dict[str, Any]) -> None:
    from onnx.backend.test.runner import Runner

    import ocannl_onnx
    from ocannl_onnx.backend import PreparedModel

    case = cases[f"test_{name}"]
    output = case.model.graph.node[0].output[0]
    prepared = PreparedModel(ocannl_onnx.load(case.model, bounds={output: 12}), "interp")
    for inputs, expected in data_sets(case, case.model):
        found = prepared.run(inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compare(Runner, expected, found, case.rtol, case.atol)
    assert not prepared.constants & OF_DATA


def test_the_backend_is_one_of_the_package() -> None:
    import numpy as np
    import onnx
    from onnx.backend.test import BackendTest

    from ocannl_onnx import backend

    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    (total,) = backend.InterpreterBackend.run_node(node, [np.float32([1, 2]), np.float32([3])])
    assert total.tolist() == [4, 5]
    with only(["test_relu", "test_tril_zero"]):
        suite = BackendTest(backend.InterpreterBackend, __name__).include(
            r"^test_(relu|tril_zero)_cpu$"
        )
    names = [
        name
        for case in suite.test_cases.values()
        for name, function in vars(case).items()
        if re.fullmatch(r"test_(relu|tril_zero)_cpu", name) and callable(function)
    ]
    assert sorted(names) == ["test_relu_cpu", "test_tril_zero_cpu"]
    for case in suite.test_cases.values():
        for name in names:
            if hasattr(case, name):
                getattr(case(name), name)()


REFUSED = re.compile(
    r"^test_(bernoulli|training_dropout_(default|default_mask|mask)?$|training_dropout)"
)
BEYOND_TOLERANCE = {"test_dft_inverse", "test_dft_inverse_opset19"}
"""Expected results hold rounding errors of 2e-7 in place of 0, which is twice the tolerance."""
FRACTIONAL_LENGTHS = {
    "test_resize_downsample_scales_cubic_align_corners",
    "test_resize_downsample_scales_linear_align_corners",
}
"""Expected results contradict the text of the standard, PyTorch and onnxruntime."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["interp", "cpu_c"])
def test_every_sixth_node_case_agrees_or_is_refused_by_name(backend: str) -> None:
    """`make onnx-table` runs all of them, in minutes."""
    unexpected = []
    for name, case in list(load_cases("node").items())[::6]:
        found = run_case(case, backend)
        if found.status == "agrees" or name in BEYOND_TOLERANCE | FRACTIONAL_LENGTHS:
            continue
        if not (found.status == "refused" and REFUSED.match(name)):
            unexpected.append(f"{name}: {found.status}, {found.reason}")
    assert not unexpected, "\n".join(unexpected)


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["simple", "pytorch-operator", *long(["pytorch-converted"])])
def test_the_other_suites_agree(suite: str) -> None:
    found = {name: run_case(case, "cpu_c") for name, case in load_cases(suite).items()}
    assert {name: each.reason for name, each in found.items() if each.status != "agrees"} == {}
