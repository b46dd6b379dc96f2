//! Quantised operators against numbers worked out by hand.

use precast_tensor::{DType, Tensor};

use crate::model::{Model, floats, int, ops};

fn bytes(shape: &[usize], elements: &[u8]) -> Tensor {
    Tensor::from_vec(shape, elements.to_vec()).unwrap()
}

#[test]
fn a_scale_of_one_element_is_a_scalar_whatever_the_axis() {
    // Axis 1 does not exist in a vector.
    let model = Model::new(13).input("x", DType::F32, &["3"]).constant("s", floats(&[1], &[2.0]));
    let model = model.constant("z", bytes(&[1], &[128])).node("QuantizeLinear", "x s z", "y", &[]);
    let outputs = model.eval("y", &[floats(&[3], &[1.0, 3.0, -1000.0])]);
    // Halves round to even.
    assert_eq!(outputs, [bytes(&[3], &[128, 130, 0])]);
}

#[test]
fn scales_along_an_axis_and_in_blocks() {
    let x = bytes(&[2, 2], &[1, 2, 3, 4]);
    let model = |opset| Model::new(opset).input("x", DType::U8, &["2", "2"]);
    let along = model(13).constant("s", floats(&[2], &[1.0, 10.0]));
    let along = along.node("DequantizeLinear", "x s", "y", &[int("axis", -2)]);
    assert_eq!(along.eval("y", std::slice::from_ref(&x)), [floats(&[2, 2], &[1.0, 2.0, 30.0, 40.0])]);
    let blocks = model(21).constant("s", floats(&[1, 2], &[1.0, 10.0]));
    let blocks = blocks.node("DequantizeLinear", "x s", "y", &[int("axis", 0), int("block_size", 2)]);
    assert_eq!(blocks.eval("y", &[x]), [floats(&[2, 2], &[1.0, 20.0, 3.0, 40.0])]);
}

#[test]
fn dynamic_quantisation_keeps_zero_exact() {
    let model = Model::new(11).input("x", DType::F32, &["3"]).node("DynamicQuantizeLinear", "x", "y s z", &[]);
    let outputs = model.eval("y s z", &[floats(&[3], &[0.0, 51.0, -204.0])]);
    assert_eq!(outputs, [bytes(&[3], &[204, 255, 0]), floats(&[], &[1.0]), bytes(&[], &[204])]);
}

#[test]
fn quantised_products_are_formed_in_integers() {
    let model = Model::new(10)
        .input("a", DType::U8, &["1", "2"])
        .constant("as", Tensor::scalar(0.5f32))
        .constant("az", bytes(&[], &[1]))
        .constant("b", bytes(&[2, 2], &[1, 2, 3, 4]))
        .constant("bs", floats(&[2], &[1.0, 2.0]))
        .constant("bz", bytes(&[2], &[0, 1]))
        .constant("ys", Tensor::scalar(1.0f32))
        .constant("yz", bytes(&[], &[10]))
        .node("QLinearMatMul", "a as az b bs bz ys yz", "y", &[]);
    assert!(ops(&model.clone().graph("y")).contains(&"matmul_int"));
    // (2, 4) times columns (1, 3) and (1, 3) is 14 and 14; scaled by 0.5 and 1.
    assert_eq!(model.eval("y", &[bytes(&[1, 2], &[3, 5])]), [bytes(&[1, 2], &[17, 24])]);
}

#[test]
fn quantised_sums_of_com_microsoft() {
    let model = Model::new(13)
        .input("a", DType::U8, &["2"])
        .constant("s", Tensor::scalar(0.5f32))
        .constant("z", bytes(&[], &[2]))
        .node("com.microsoft:QLinearAdd", "a s z a s z s z", "y", &[]);
    // Twice (a - 2), and 2 again.
    assert_eq!(model.eval("y", &[bytes(&[2], &[3, 200])]), [bytes(&[2], &[4, 255])]);
}
