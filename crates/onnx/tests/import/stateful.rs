//! Operators that carry a state: a sequence in two calls is the sequence in one.

use precast_onnx::proto::AttributeProto;
use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, assert_near, ramp};
use crate::model::{Model, floats, int, int_tensor, ints, ops, text};

/// Rows `from..to` of the second axis of a [1, T, width] tensor.
fn part(x: &Tensor, from: usize, to: usize) -> Tensor {
    let width = x.shape()[2];
    let elements: Vec<f32> = x.to_f64_vec()[from * width..to * width].iter().map(|&x| x as f32).collect();
    floats(&[1, to - from, width], &elements)
}

fn linear_attention(time: usize, rule: &'static str) -> Model {
    let time = time.to_string();
    let attributes: Vec<AttributeProto> =
        vec![int("q_num_heads", 4), int("kv_num_heads", 2), text("update_rule", rule)];
    let inputs = [("q", "8"), ("k", "4"), ("v", "6"), ("d", "4"), ("b", "2")];
    let model =
        inputs.iter().fold(Model::new(27).input("s", DType::F32, &["1", "2", "2", "3"]), |model, (name, width)| {
            model.input(name, DType::F32, &["1", &time, width])
        });
    let (decay, beta) =
        (if rule.starts_with("gated") { "d" } else { "_" }, if rule.ends_with("delta") { "b" } else { "_" });
    model.node("LinearAttention", &format!("q k v s {decay} {beta}"), "y t", &attributes)
}

/// The inputs of `linear_attention` for steps `from..to`.
fn arguments(state: &Tensor, from: usize, to: usize) -> Vec<Tensor> {
    let mut arguments = vec![state.clone()];
    for (width, step) in [(8, 5), (4, 3), (6, 7), (4, 9), (2, 11)] {
        let small: Vec<f32> = ramp(&[1, 80, width], step).to_f64_vec().iter().map(|&x| x as f32 / 4.0 - 0.2).collect();
        arguments.push(part(&floats(&[1, 80, width], &small), from, to));
    }
    arguments
}

#[test]
fn linear_attention_goes_on_where_the_state_left_it() {
    let state = Tensor::zeros(DType::F32, [1, 2, 2, 3]).unwrap();
    for rule in ["linear", "gated", "delta", "gated_delta"] {
        let whole = linear_attention(7, rule).eval("y t", &arguments(&state, 0, 7));
        let first = linear_attention(4, rule).eval("y t", &arguments(&state, 0, 4));
        let second = linear_attention(3, rule).eval("y t", &arguments(&first[1], 4, 7));
        assert_close(&[part(&whole[0], 4, 7), whole[1].clone()], &second);
    }
}

#[test]
fn a_long_sequence_keeps_its_loop_and_its_meaning() {
    let state = Tensor::zeros(DType::F32, [1, 2, 2, 3]).unwrap();
    let model = linear_attention(80, "gated_delta");
    assert!(ops(&model.clone().graph("y t")).contains(&"loop"));
    let whole = model.eval("y t", &arguments(&state, 0, 80));
    let first = linear_attention(40, "gated_delta").eval("y t", &arguments(&state, 0, 40));
    let second = linear_attention(40, "gated_delta").eval("y t", &arguments(&first[1], 40, 80));
    assert_close(&[part(&whole[0], 40, 80), whole[1].clone()], &second);
}

#[test]
fn a_causal_convolution_sees_the_state_before_its_input() {
    let conv = |length: &str, inputs: &str| {
        let model = Model::new(27).input("x", DType::F32, &["1", "2", length]).input("s", DType::F32, &["1", "2", "2"]);
        let model = model.constant("w", ramp(&[2, 1, 3], 5)).constant("b", floats(&[2], &[0.5, -0.5]));
        model.node("CausalConvWithState", inputs, "y t", &[text("activation", "silu")])
    };
    let x = [1.0f32, -2.0, 3.0, 0.5, 2.0, 1.0, -1.0, 4.0, 0.25, -3.0];
    let nothing = floats(&[1, 2, 2], &[0.0; 4]);
    let whole = conv("5", "x w b").eval("y t", &[floats(&[1, 2, 5], &x), nothing.clone()]);
    let whole_again = conv("5", "x w b s").eval("y t", &[floats(&[1, 2, 5], &x), nothing.clone()]);
    assert_eq!(whole, whole_again);
    // The last tap of the first filter is 1: silu(1 * 1 + 1 / 2).
    assert!((whole[0].to_f64_vec()[0] - 1.5 / (1.0 + (-1.5f64).exp())).abs() < 1e-6, "{:?}", whole[0]);
    let first = conv("1", "x w b s").eval("y t", &[floats(&[1, 2, 1], &[x[0], x[5]]), nothing]);
    let rest = floats(&[1, 2, 4], &[&x[1..5], &x[6..]].concat());
    let second = conv("4", "x w b s").eval("y t", &[rest, first[1].clone()]);
    assert_eq!(whole[1], second[1]);
    assert_eq!(whole[0].to_f64_vec()[1..5], second[0].to_f64_vec()[..4]);
}

/// As many value heads as query heads, and a state with its axes the other way round: LinearAttention.
#[test]
fn a_gated_delta_net_is_linear_attention_on_heads_apart() {
    let attributes = [int("q_num_heads", 2), int("kv_num_heads", 2), text("update_rule", "gated_delta")];
    let model = Model::new(27)
        .input("q", DType::F32, &["1", "3", "4"])
        .input("k", DType::F32, &["1", "3", "4"])
        .input("v", DType::F32, &["1", "3", "6"])
        .input("d", DType::F32, &["1", "3", "2"])
        .input("b", DType::F32, &["1", "3", "2"])
        .input("s", DType::F32, &["1", "2", "2", "3"])
        .ints("keys", &[1, 3, 2, 2])
        .ints("values", &[1, 3, 2, 3])
        .ints("flat", &[1, 3, 6])
        .node("LinearAttention", "q k v s d b", "z t", &attributes)
        .node("Reshape", "q keys", "qh", &[])
        .node("Reshape", "k keys", "kh", &[])
        .node("Reshape", "v values", "vh", &[])
        .node("Transpose", "s", "sh", &[ints("perm", &[0, 1, 3, 2])])
        .node("com.microsoft:GatedDeltaNet", "qh kh vh _ d b sh", "o p", &[])
        .node("Reshape", "o flat", "y", &[])
        .node("Transpose", "p", "r", &[ints("perm", &[0, 1, 3, 2])]);
    let sizes: [(&[usize], usize); 6] =
        [(&[1, 3, 4], 5), (&[1, 3, 4], 3), (&[1, 3, 6], 7), (&[1, 3, 2], 9), (&[1, 3, 2], 4), (&[1, 2, 2, 3], 6)];
    let found = model.eval("y r z t", &sizes.map(|(shape, step)| ramp(shape, step)));
    assert_close(&found[..2], &found[2..]);
}

/// Two value heads for one query head, its gate and its activations spelled out; tokens without an axis of the batch.
#[test]
fn a_gated_delta_net_shares_heads_and_computes_its_gates() {
    let model = Model::new(27)
        .input("q", DType::F32, &["3", "1", "2"])
        .input("k", DType::F32, &["3", "1", "2"])
        .input("v", DType::F32, &["3", "2", "2"])
        .input("d", DType::F32, &["3", "2"])
        .input("b", DType::F32, &["3", "2"])
        .constant("s", ramp(&[1, 2, 2, 2], 5))
        .constant("a", ramp(&[2], 3))
        .constant("t", ramp(&[2], 7))
        .node(
            "com.microsoft:GatedDeltaNet",
            "q k v _ d b s a t",
            "y r",
            &[text("gate_activation", "qwen"), text("beta_activation", "sigmoid"), int("qk_l2_norm", 1)],
        )
        .constant("twice", int_tensor(&[3], &[1, 2, 1]))
        .node("Tile", "q twice", "q2", &[])
        .node("Tile", "k twice", "k2", &[])
        .node("LpNormalization", "q2", "qn", &[int("axis", -1)])
        .node("LpNormalization", "k2", "kn", &[int("axis", -1)])
        .node("Add", "d t", "dt", &[])
        .node("Softplus", "dt", "sp", &[])
        .node("Exp", "a", "ea", &[])
        .node("Mul", "sp ea", "m", &[])
        .node("Neg", "m", "g", &[])
        .node("Sigmoid", "b", "u", &[])
        .node("com.microsoft:GatedDeltaNet", "qn kn v _ g u s", "z w", &[]);
    let sizes: [(&[usize], usize); 5] = [(&[3, 1, 2], 5), (&[3, 1, 2], 4), (&[3, 2, 2], 7), (&[3, 2], 9), (&[3, 2], 6)];
    let found = model.eval("y r z w", &sizes.map(|(shape, step)| ramp(shape, step)));
    assert_near(&found[..2], &found[2..], 1e-4);
}
