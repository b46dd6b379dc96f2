//! Matrix products. Expected numbers are those of onnxruntime unless they are obvious.

use precast_onnx::proto::AttributeProto;
use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, assert_near, ramp};
use crate::model::{Model, float, floats, int, ops, output_type, text};

#[test]
fn vectors_are_rows_on_the_left_and_columns_on_the_right() {
    let model = |a: &[&str], b: &[&str]| {
        let model = Model::new(13).input("a", DType::F32, a).input("b", DType::F32, b);
        output_type(&model.node("MatMul", "a b", "y", &[]).graph("y"))
    };
    assert_eq!(model(&["3"], &["3"]), "f32[]");
    assert_eq!(model(&["3"], &["b", "3", "4"]), "f32[b,4]");
    assert_eq!(model(&["b", "n", "3"], &["3"]), "f32[b,n]");
}

#[test]
fn gemm_scales_and_adds_only_where_asked_to() {
    let model = |attributes: &[_]| {
        let model = Model::new(13).input("a", DType::F32, &["3", "2"]).input("b", DType::F32, &["4", "3"]);
        model.constant("c", ramp(&[4], 3)).node("Gemm", "a b c", "y", attributes)
    };
    let (ta, tb) = (int("transA", 1), int("transB", 1));
    assert_eq!(ops(&model(&[ta.clone(), tb.clone()]).graph("y")), ["matmul", "binary"]);
    let scaled = model(&[ta.clone(), tb.clone(), float("alpha", 0.5), float("beta", 2.0)]);
    assert_eq!(ops(&scaled.clone().graph("y")), ["matmul", "binary", "binary"]);
    assert_close(
        &scaled.eval("y", &[ramp(&[3, 2], 7), ramp(&[4, 3], 5)]),
        &[floats(&[2, 4], &[-2.21875, -1.65625, 0.53125, 1.09375, -2.875, -1.0, -0.34375, 1.53125])],
    );
    assert_eq!(ops(&model(&[ta, tb, float("beta", 0.0)]).graph("y")), ["matmul"]);
}

#[test]
fn zero_points_of_rows_stand_beside_them() {
    let bytes = |shape: &[usize], elements: &[u8]| Tensor::from_vec(shape, elements.to_vec()).unwrap();
    let model = Model::new(13).input("a", DType::U8, &["2", "2"]).constant("b", bytes(&[2, 1], &[1, 2]));
    let model = model.constant("az", bytes(&[2], &[1, 2])).constant("bz", bytes(&[1], &[1]));
    let model = model.node("MatMulInteger", "a b az bz", "y", &[]);
    let expected = Tensor::from_vec(vec![2, 1], vec![5i32, 2]).unwrap();
    assert_eq!(model.eval("y", &[bytes(&[2, 2], &[4, 6, 7, 4])]), [expected]);
}

fn einsum(equation: &'static str, operands: &[(&[&str], Tensor)]) -> (Vec<&'static str>, Vec<Tensor>) {
    let mut model = Model::new(12);
    let mut names = String::new();
    for (position, (dims, _)) in operands.iter().enumerate() {
        model = model.input(&format!("x{position}"), DType::F32, dims);
        names += &format!("x{position} ");
    }
    let model = model.node("Einsum", &names, "y", &[text("equation", equation)]);
    let inputs: Vec<Tensor> = operands.iter().map(|(_, tensor)| tensor.clone()).collect();
    (ops(&model.clone().graph("y")), model.eval("y", &inputs))
}

#[test]
fn einsum_of_attention_scores_is_one_matmul() {
    let q: &[&str] = &["b", "h", "i", "d"];
    let k: &[&str] = &["b", "h", "j", "d"];
    let (ops, outputs) = einsum("bhid,bhjd->bhij", &[(q, ramp(&[1, 2, 2, 3], 7)), (k, ramp(&[1, 2, 4, 3], 5))]);
    assert_eq!(ops, ["matmul"]);
    assert_close(
        &outputs,
        &[floats(
            &[1, 2, 2, 4],
            &[
                0.9375, -0.3125, 2.5, 1.25, 0.25, 0.375, -1.9375, -1.8125, -1.75, -1.875, -2.0, 0.3125, 0.625, 1.875,
                3.125, 0.3125,
            ],
        )],
    );
}

#[test]
fn einsum_joins_three_operands_and_broadcasts_an_ellipsis() {
    let operands: [(&[&str], Tensor); 3] =
        [(&["2", "3"], ramp(&[2, 3], 7)), (&["4", "3", "2"], ramp(&[4, 3, 2], 5)), (&["2", "2"], ramp(&[2, 2], 3))];
    assert_close(
        &einsum("bi,oij,bj->bo", &operands).1,
        &[floats(&[2, 4], &[-1.96875, 1.82812, -2.29688, 3.9375, 1.5, -0.140625, -1.17188, 1.45312])],
    );
    let operands: [(&[&str], Tensor); 2] = [(&["n", "m", "2"], ramp(&[2, 3, 2], 7)), (&["2", "4"], ramp(&[2, 4], 5))];
    assert_close(
        &einsum("...d,de->...e", &operands).1,
        &[floats(
            &[2, 3, 4],
            &[
                2.3125, 0.75, -1.625, 1.6875, 2.0, 1.0625, -1.5, 1.625, 1.6875, 1.375, -1.375, 1.5625, 1.375, 1.6875,
                -1.25, 1.5, 1.0625, 2.0, -1.125, 1.4375, 0.75, 2.3125, -1.0, 1.375,
            ],
        )],
    );
}

#[test]
fn einsum_without_an_output_sorts_its_labels() {
    let x: &[&str] = &["2", "3"];
    assert_eq!(einsum("ba", &[(x, ramp(&[2, 3], 1))]).0, ["transpose"]);
    // A repeated label is a diagonal, and the one label that is left is summed.
    let square = floats(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    assert_eq!(einsum("ii", &[(&["2", "2"], square.clone())]).1, [floats(&[], &[5.0])]);
    assert_eq!(einsum("ii->i", &[(&["2", "2"], square)]).1, [floats(&[2], &[1.0, 4.0])]);
}

#[test]
fn four_bit_weights_stay_packed_in_blocks() {
    let packed: Vec<u8> = (0..32u8).map(|element| element * 7).collect();
    let model = Model::new(17)
        .input("a", DType::F32, &["n", "32"])
        .constant("b", Tensor::from_vec(vec![2, 2, 8], packed).unwrap())
        .constant("s", floats(&[4], &[0.5, 0.25, 0.125, 1.0]));
    let attributes = [int("K", 32), int("N", 2), int("bits", 4), int("block_size", 16)];
    let model = model.node("com.microsoft:MatMulNBits", "a b s", "y", &attributes);
    assert_close(&model.eval("y", &[ramp(&[2, 32], 7)]), &[floats(&[2, 2], &[-3.75, 7.375, -0.0625, 33.1875])]);
}

#[test]
fn determinants_of_small_matrices_are_written_out() {
    let model = |size: &str| Model::new(11).input("x", DType::F32, &["n", size, size]).node("Det", "x", "y", &[]);
    let x = floats(&[1, 3, 3], &[2.0, 0.0, 1.0, 1.0, 3.0, 2.0, 1.0, 1.0, 4.0]);
    assert_eq!(model("3").eval("y", &[x]), [floats(&[1], &[18.0])]);
    assert!(model("9").refusal("y").contains("9x9"));
}

/// Several products of one normalised operand are those products, each by itself.
#[test]
fn products_with_packed_weights_share_a_norm() {
    let bytes = |step: usize| {
        let elements: Vec<u8> = (0..64).map(|at| (at * step % 251) as u8).collect();
        Tensor::from_vec([4, 1, 16], elements).unwrap()
    };
    let sizes = [int("K", 32), int("block_size", 32), int("bits", 4)];
    let with = |more: &[AttributeProto]| [&sizes[..], more].concat();
    let model = Model::new(17)
        .input("a", DType::F32, &["2", "32"])
        .input("s", DType::F32, &["2", "32"])
        .constant("g", ramp(&[32], 5))
        .constant("p", bytes(7))
        .constant("q", bytes(11))
        .constant("c", floats(&[4], &[0.5, 0.25, 1.0, -0.5]))
        .constant("b", ramp(&[4], 3))
        .node(
            "com.microsoft:MatMulNBitsMlp",
            "a s g p c b q c _",
            "y t",
            &with(&[int("N", 4), text("activation", "silu")]),
        )
        .node(
            "com.microsoft:MatMulNBitsQkv",
            "a s g p c b q c _ q c b",
            "k l m n",
            &with(&[int("Nq", 4), int("Nkv", 4)]),
        )
        .node("com.microsoft:SkipSimplifiedLayerNormalization", "a s g", "d _ _ e", &[float("epsilon", 1e-5)])
        .node("com.microsoft:MatMulNBits", "d p c _ _ b", "u", &with(&[int("N", 4)]))
        .node("com.microsoft:MatMulNBits", "d q c", "v", &with(&[int("N", 4)]))
        .node("Sigmoid", "u", "w", &[])
        .node("Mul", "u w", "x", &[])
        .node("Mul", "x v", "z", &[]);
    let found = model.eval("y t k l z e u v", &[ramp(&[2, 32], 7), ramp(&[2, 32], 9)]);
    // Their epsilons differ, by little.
    assert_near(&found[..4], &found[4..], 1e-4);
}

#[test]
fn products_of_small_floats_are_those_of_their_numbers() {
    // e2m1: 0.5, 1.5, -6 and 4; e4m3: 0x38 is 1, 0x40 is 2.
    let model = Model::new(19)
        .input("a", DType::F32, &["1", "4"])
        .constant("b", Tensor::from_vec([1, 2], vec![0x31_u8, 0x6f]).unwrap())
        .constant("s", Tensor::from_vec([1, 2], vec![0x38_u8, 0x40]).unwrap())
        .constant("w", floats(&[], &[0.5]))
        .constant("c", floats(&[1], &[10.0]))
        .node("com.microsoft:MatMulBlockQuantizedFp4Weight", "a b s w _ c", "y", &[int("block_size", 2)]);
    let a = floats(&[1, 4], &[1.0, 2.0, 4.0, 8.0]);
    // (0.5 + 3) / 2 + (-24 + 32) + 10.
    assert_eq!(model.eval("y", &[a.clone()]), [floats(&[1, 1], &[19.75])]);

    let eight = |numbers: &[f64]| Tensor::from_f64(DType::F8E4M3Fn, [1, 4], numbers, true).unwrap();
    let model = Model::new(19)
        .input("a", DType::F32, &["1", "4"])
        .constant("b", eight(&[1.0, -2.0, 0.5, 3.0]))
        .constant("s", floats(&[1, 2], &[1.0, 0.25]))
        .constant("z", floats(&[], &[0.5]))
        .node("com.microsoft:MatMulBlockQuantizedFp8Weight", "a b s", "y", &[int("block_size", 3)])
        .node("com.microsoft:MatMulBlockQuantizedFp8Weight", "a b s z", "r", &[int("block_size", 3)]);
    // 1 - 4 + 2 + 6; rounded to e4m3 after a division by 0.5 these numbers stay.
    let found = model.eval("y r", &[a.clone()]);
    assert_eq!(found, [floats(&[1, 1], &[5.0]), floats(&[1, 1], &[5.0])]);

    let model = Model::new(19)
        .input("a", DType::F32, &["1", "4"])
        .constant("b", eight(&[1.0, -2.0, 0.5, 3.0]))
        .constant("c", floats(&[1], &[4.0]))
        .constant("s", floats(&[1], &[2.0]))
        .node(
            "com.microsoft:GemmFloat8",
            "a b c _ s",
            "y",
            &[int("transB", 1), float("alpha", 0.5), float("beta", 0.25), text("activation", "RELU")],
        );
    // 2 (1 - 4 + 2 + 24) / 2 + 1.
    assert_eq!(model.eval("y", &[a]), [floats(&[1, 1], &[24.0])]);
}
