//! Recurrent layers. Expected numbers are those of onnxruntime.

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, assert_near, ramp};
use crate::model::{Model, float, floats, floats_attribute, int, ops, text, texts};

#[test]
fn both_directions_of_an_lstm_stop_at_the_lengths() {
    let model = Model::new(14)
        .input("x", DType::F32, &["t", "2", "2"])
        .constant("w", ramp(&[2, 8, 2], 5))
        .constant("r", ramp(&[2, 8, 2], 3))
        .constant("b", ramp(&[2, 16], 9))
        .constant("l", Tensor::from_vec([2], vec![3i32, 2]).unwrap());
    let attributes = [int("hidden_size", 2), text("direction", "bidirectional")];
    let model = model.node("LSTM", "x w r b l", "y h c", &attributes);
    assert_eq!(ops(&model.clone().graph("y h c")), ["recurrent"]);
    assert_close(
        &model.eval("y h c", &[ramp(&[3, 2, 2], 7)]),
        &[
            floats(
                &[3, 2, 2, 2],
                &[
                    -0.434971, 0.0744353, -0.43861, 0.0783937, -0.0586431, 0.177723, -0.0433598, 0.17357, -0.648872,
                    0.0962011, -0.635987, 0.100001, -0.0396298, 0.215598, -0.0164847, 0.174454, -0.710322, 0.108117,
                    0.0, 0.0, -0.0135643, 0.224717, 0.0, 0.0,
                ],
            ),
            floats(&[2, 2, 2], &[-0.710322, 0.108117, -0.635987, 0.100001, -0.0586431, 0.177723, -0.0433598, 0.17357]),
            floats(&[2, 2, 2], &[-1.13692, 0.166196, -0.946946, 0.160592, -1.59342, 0.370804, -1.08477, 0.310708]),
        ],
    );
}

#[test]
fn a_batch_first_layer_is_transposed() {
    let layer = |layout: i64, dims: &[&str]| {
        let model = Model::new(14).input("x", DType::F32, dims);
        let model = model.constant("w", ramp(&[1, 2, 2], 5)).constant("r", ramp(&[1, 2, 2], 3));
        model.node("RNN", "x w r", "y h", &[int("hidden_size", 2), int("layout", layout)])
    };
    let outer = layer(0, &["t", "1", "2"]).eval("y h", &[ramp(&[3, 1, 2], 7)]);
    let inner = layer(1, &["1", "t", "2"]).eval("y h", &[ramp(&[1, 3, 2], 7)]);
    let shapes: Vec<&[usize]> = inner.iter().map(Tensor::shape).collect();
    assert_eq!(shapes, [&[1, 3, 1, 2][..], &[1, 1, 2]]);
    assert_eq!(inner[0].to_f64_vec(), outer[0].to_f64_vec());
}

#[test]
fn activations_take_parameters_in_order_and_defaults_after() {
    let model = Model::new(14)
        .input("x", DType::F32, &["t", "1", "2"])
        .constant("w", ramp(&[1, 8, 2], 5))
        .constant("r", ramp(&[1, 8, 2], 3));
    let attributes = [
        int("hidden_size", 2),
        texts("activations", &["HardSigmoid", "tanh", "LeakyRelu"]),
        floats_attribute("activation_alpha", &[0.3, 0.1]),
        floats_attribute("activation_beta", &[0.4]),
        float("clip", 0.9),
    ];
    let model = model.node("LSTM", "x w r", "y h c", &attributes);
    assert_close(
        &model.eval("y h c", &[ramp(&[2, 1, 2], 7)]),
        &[
            floats(&[2, 1, 1, 2], &[-0.0191968, 0.0483056, -0.0407241, 0.0654038]),
            floats(&[1, 1, 2], &[-0.0407241, 0.0654038]),
            floats(&[1, 1, 2], &[-0.801466, 0.0976176]),
        ],
    );
}

#[test]
fn a_gru_may_be_linear_before_its_reset() {
    let model = Model::new(14)
        .input("x", DType::F32, &["t", "1", "2"])
        .input("h", DType::F32, &["1", "1", "2"])
        .constant("w", ramp(&[1, 6, 2], 5))
        .constant("r", ramp(&[1, 6, 2], 3))
        .constant("b", ramp(&[1, 12], 9));
    let attributes = [int("hidden_size", 2), int("linear_before_reset", 1)];
    let model = model.node("GRU", "x w r b _ h", "y yh", &attributes);
    assert_close(
        &model.eval("y yh", &[ramp(&[2, 1, 2], 7), ramp(&[1, 1, 2], 11)]),
        &[floats(&[2, 1, 1, 2], &[-0.829558, 0.756138, 0.111258, 0.247245]), floats(&[1, 1, 2], &[0.111258, 0.247245])],
    );
}

#[test]
fn eight_bit_weights_of_an_lstm_are_near_the_dynamic_ones() {
    let bytes = |step: usize| {
        let elements = ramp(&[1, 2, 8], step).to_f64_vec().into_iter().map(|x| (x * 40.0) as i8).collect();
        Tensor::from_vec(vec![1, 2, 8], elements).unwrap()
    };
    let model = Model::new(14)
        .input("x", DType::F32, &["t", "1", "2"])
        .constant("w", bytes(5))
        .constant("r", bytes(3))
        .constant("s", floats(&[1], &[0.02]))
        .constant("z", Tensor::from_vec([1], vec![0i8]).unwrap());
    let inputs = "x w r _ _ _ _ _ s z s z";
    let model = model.node("com.microsoft:DynamicQuantizeLSTM", inputs, "y h c", &[int("hidden_size", 2)]);
    let outputs = model.eval("y h c", &[ramp(&[3, 1, 2], 7)]);
    assert_near(
        &outputs,
        &[
            floats(&[3, 1, 1, 2], &[0.108926, -0.247998, 0.188311, -0.148839, 0.204768, 0.0106425]),
            floats(&[1, 1, 2], &[0.204768, 0.0106425]),
            floats(&[1, 1, 2], &[0.432094, 0.0175645]),
        ],
        1e-4,
    );
}
