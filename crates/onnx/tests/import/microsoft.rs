//! Operators of com.microsoft that onnxruntime has no kernel of on a CPU: held against the operators of ai.onnx that they are
//! made of. Those that it has are held against it by the differential fuzzer (`xtask/src/fuzz/makers`).

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, ramp};
use crate::model::{Model, float, floats, int, int_tensor, ints, text};

#[test]
fn convolutions_with_channels_last_are_those_with_channels_first_between_two_transposes() {
    let model = || {
        let model =
            Model::new(17).input("x", DType::F32, &["2", "5", "4", "3"]).input("z", DType::F32, &["2", "4", "3", "2"]);
        model.constant("w", ramp(&[2, 3, 2, 2], 5)).constant("b", floats(&[2], &[0.5, -1.0]))
    };
    let spelled_out = model()
        .node("Transpose", "x", "t", &[ints("perm", &[0, 3, 1, 2])])
        .node("Conv", "t w b", "c", &[])
        .node("Transpose", "c", "y", &[ints("perm", &[0, 2, 3, 1])])
        .node("Add", "y z", "s", &[])
        .node("Relu", "s", "r", &[]);
    let inputs = [ramp(&[2, 5, 4, 3], 7), ramp(&[2, 4, 3, 2], 3)];
    let plain = model().node("com.microsoft:NhwcConv", "x w b", "y", &[]);
    assert_close(&plain.eval("y", &inputs), &spelled_out.clone().eval("y", &inputs));
    let fused = model().node("com.microsoft:NhwcFusedConv", "x w b z", "r", &[text("activation", "Relu")]);
    assert_close(&fused.eval("r", &inputs), &spelled_out.eval("r", &inputs));
}

#[test]
fn a_group_norm_behind_a_sum_gives_both() {
    let model = || {
        let model = Model::new(17).input("x", DType::F32, &["2", "3", "2", "4"]).input("k", DType::F32, &["2", "4"]);
        model
            .constant("g", ramp(&[4], 3))
            .constant("h", ramp(&[4], 5))
            .constant("b", ramp(&[4], 7))
            .ints("axes", &[1, 2])
    };
    let attributes = [int("groups", 2), int("activation", 1), float("epsilon", 0.5)];
    let spelled_out = model()
        .node("Unsqueeze", "k axes", "u", &[])
        .node("Add", "x u", "a", &[])
        .node("Add", "a b", "s", &[])
        .node("com.microsoft:GroupNorm", "s g h", "y", &attributes);
    let inputs = [ramp(&[2, 3, 2, 4], 7), ramp(&[2, 4], 5)];
    let whole = model().node("com.microsoft:SkipGroupNorm", "x g h k b", "y s", &attributes);
    assert_close(&whole.eval("y s", &inputs), &spelled_out.eval("y s", &inputs));
}

#[test]
fn real_transforms_are_one_sided_ones_and_undo_each_other() {
    let model = Model::new(20).input("x", DType::F32, &["2", "6"]).ints("last", &[2]);
    let attributes = [int("normalized", 0), int("onesided", 1), int("signal_ndim", 1)];
    let model = model
        .node("com.microsoft:Rfft", "x", "f", &attributes)
        .node("com.microsoft:Irfft", "f", "y", &attributes)
        .node("Unsqueeze", "x last", "u", &[])
        .node("DFT", "u", "d", &[int("onesided", 1)]);
    let x = ramp(&[2, 6], 7);
    let [forth, back, expected] = <[Tensor; 3]>::try_from(model.eval("f y d", &[x.clone()])).unwrap();
    assert_close(&[forth], &[expected]);
    assert_close(&[back], &[x]);
}

#[test]
fn complex_numbers_are_pairs() {
    let model = Model::new(17).input("a", DType::F32, &["1", "2"]).input("b", DType::F32, &["1", "2"]);
    let model =
        model.node("com.microsoft:ComplexMul", "a b", "y", &[]).node("com.microsoft:ComplexMulConj", "a b", "z", &[]);
    // (1 + 2i)(3 + 4i) and (1 + 2i)(3 - 4i).
    let inputs = [floats(&[1, 2], &[1.0, 2.0]), floats(&[1, 2], &[3.0, 4.0])];
    assert_eq!(model.eval("y z", &inputs), [floats(&[1, 2], &[-5.0, 10.0]), floats(&[1, 2], &[11.0, 2.0])]);
}

#[test]
fn bytes_are_multiplied_and_added_in_32_bits() {
    let bytes = |elements: &[u8]| Tensor::from_vec([elements.len()], elements.to_vec()).unwrap();
    let model = Model::new(17).input("a", DType::U8, &["2"]).input("b", DType::U8, &["2"]).constant("z", bytes(&[3]));
    let attributes = [ints("axes", &[0]), int("keepdims", 0)];
    let model = model.node("com.microsoft:MulInteger", "a z b _", "y", &[]).node(
        "com.microsoft:ReduceSumInteger",
        "a",
        "s",
        &attributes,
    );
    let expected = [Tensor::from_vec([2], vec![252 * 255, -3]).unwrap(), Tensor::scalar(255u32)];
    assert_eq!(model.eval("y s", &[bytes(&[255, 0]), bytes(&[255, 1])]), expected);
}

#[test]
fn an_embedding_is_a_gather_and_rotation_by_angles_a_sum_of_two_products() {
    let model = Model::new(17).input("w", DType::F32, &["3", "2"]).input("i", DType::I64, &["2"]);
    let model = model.node("com.microsoft:TorchEmbedding", "w i", "y", &[]);
    let inputs = [floats(&[3, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), int_tensor(&[2], &[2, 0])];
    assert_eq!(model.eval("y", &inputs), [floats(&[2, 2], &[5.0, 6.0, 1.0, 2.0])]);

    let model = Model::new(17).input("e", DType::F32, &["1", "1", "2"]).input("q", DType::F32, &["1", "1", "1", "2"]);
    let model = model.input("r", DType::F32, &["1", "1", "1", "2"]);
    let model = model.node("com.microsoft:GemmaRotaryEmbedding", "e q r r q", "y z", &[]);
    let quarter = std::f32::consts::FRAC_PI_2;
    let inputs = [floats(&[1, 1, 2], &[0.0, quarter]), ramp(&[1, 1, 1, 2], 7), ramp(&[1, 1, 1, 2], 3)];
    // Not turned, then by a quarter: its own first element, the second one of the other.
    let (q, r) = (inputs[1].to_f64_vec(), inputs[2].to_f64_vec());
    let expected = [[q[0], r[1]], [r[0], q[1]]].map(|row| floats(&[1, 1, 1, 2], &row.map(|number| number as f32)));
    assert_close(&model.eval("y z", &inputs), &expected);
}

#[test]
fn weights_that_do_not_fill_their_blocks_and_metrics_without_a_formula_are_refused() {
    let model = Model::new(17).input("a", DType::F32, &["1", "16"]).constant("s", floats(&[1], &[1.0]));
    let model = model.constant("b", Tensor::from_vec([3], vec![0u8; 3]).unwrap());
    let attributes = [int("K", 16), int("N", 1), int("block_size", 16), int("quant_type", 1)];
    let refusal =
        model.node("com.microsoft:MatMulBnb4", "a b s", "y", &attributes).import("y").unwrap_err().to_string();
    assert!(refusal.contains("3 bytes and 1 scales do not make 1 by 16 weights"), "{refusal}");
    let model = Model::new(17).input("a", DType::F32, &["2", "3"]);
    let refusal = model.node("com.microsoft:CDist", "a a", "y", &[text("metric", "yule")]).refusal("y");
    assert!(refusal.contains("metric=yule is not covered"), "{refusal}");
}
