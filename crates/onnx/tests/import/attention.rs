//! Attention and rotary embeddings. Expected numbers are those of the ONNX reference, for com.microsoft of onnxruntime.

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, ramp};
use crate::model::{Model, bools, floats, int, int_tensor, ops};

#[test]
fn shared_key_heads_and_past_keys() {
    let model = Model::new(24)
        .input("q", DType::F32, &["b", "2", "4"])
        .input("k", DType::F32, &["b", "2", "2"])
        .input("v", DType::F32, &["b", "2", "2"])
        .input("pk", DType::F32, &["b", "1", "p", "2"])
        .input("pv", DType::F32, &["b", "1", "p", "2"]);
    let attributes = [int("q_num_heads", 2), int("kv_num_heads", 1), int("is_causal", 1)];
    let model = model.node("Attention", "q k v _ pk pv", "y nk nv", &attributes);
    let inputs = [
        ramp(&[1, 2, 4], 7),
        ramp(&[1, 2, 2], 5),
        ramp(&[1, 2, 2], 3),
        ramp(&[1, 1, 1, 2], 9),
        ramp(&[1, 1, 1, 2], 11),
    ];
    assert_close(
        &model.eval("y nk nv", &inputs),
        &[
            floats(&[1, 2, 4], &[-1.5, 0.338159, -1.5, 0.424958, -1.43887, 0.518937, -1.42639, 0.597398]),
            floats(&[1, 1, 3, 2], &[-1.5, 0.75, -1.5, -0.25, 1.0, -1.0]),
            floats(&[1, 1, 3, 2], &[-1.5, 1.25, -1.5, -0.75, 0.0, 0.75]),
        ],
    );
}

#[test]
fn a_query_without_keys_gives_zeros() {
    let model = Model::new(24).input("q", DType::F32, &["1", "1", "2", "2"]);
    let model = model.input("k", DType::F32, &["1", "1", "2", "2"]).input("v", DType::F32, &["1", "1", "2", "2"]);
    let model = model.constant("m", bools(&[2, 2], &[true, false, false, false]));
    let model = model.node("Attention", "q k v m", "y", &[]);
    let inputs = [ramp(&[1, 1, 2, 2], 7), ramp(&[1, 1, 2, 2], 5), ramp(&[1, 1, 2, 2], 3)];
    assert_close(&model.eval("y", &inputs), &[floats(&[1, 1, 2, 2], &[-1.5, -0.75, 0.0, 0.0])]);
}

#[test]
fn attention_without_masks_is_two_products_around_a_softmax() {
    let model = Model::new(23).input("q", DType::F32, &["b", "2", "s", "4"]);
    let model = model.input("k", DType::F32, &["b", "2", "t", "4"]).input("v", DType::F32, &["b", "2", "t", "4"]);
    let graph = model.node("Attention", "q k v", "y", &[]).graph("y");
    assert_eq!(ops(&graph), ["matmul", "binary", "softmax", "matmul"]);
}

#[test]
fn rotation_of_neighbours_and_of_halves() {
    let model = Model::new(23).input("x", DType::F32, &["1", "1", "2", "4"]);
    let model = model.constant("c", ramp(&[3, 2], 5)).constant("s", ramp(&[3, 2], 3));
    let model = model.constant("p", int_tensor(&[1, 2], &[2, 0]));
    let model = model.node("RotaryEmbedding", "x c s p", "y", &[int("interleaved", 1)]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 1, 2, 4], 7)]),
        &[floats(&[1, 1, 2, 4], &[-0.75, -2.1875, -1.375, 2.0, 2.625, 0.375, 0.9375, 0.3125])],
    );

    let model = Model::new(17).input("x", DType::F32, &["1", "2", "4"]).constant("p", int_tensor(&[1], &[1]));
    let model = model.constant("c", ramp(&[3, 2], 5)).constant("s", ramp(&[3, 2], 3));
    let model = model.node("com.microsoft:RotaryEmbedding", "x p c s", "y", &[]);
    assert_close(
        &model.eval("y", &[ramp(&[1, 2, 4], 7)]),
        &[floats(&[1, 2, 4], &[-1.5, -0.625, -1.25, -0.3125, 0.875, 2.125, -1.6875, 0.75])],
    );
}

fn lengths(elements: &[i32]) -> Tensor {
    Tensor::from_vec([elements.len()], elements.to_vec()).unwrap()
}

#[test]
fn group_query_attention_appends_to_its_cache() {
    let model = Model::new(17)
        .input("q", DType::F32, &["1", "1", "16"])
        .input("k", DType::F32, &["1", "1", "8"])
        .input("v", DType::F32, &["1", "1", "8"])
        .input("pk", DType::F32, &["1", "1", "p", "8"])
        .input("pv", DType::F32, &["1", "1", "p", "8"])
        .input("l", DType::I32, &["1"])
        .constant("t", Tensor::scalar(3i32));
    let attributes = [int("num_heads", 2), int("kv_num_heads", 1)];
    let model = model.node("com.microsoft:GroupQueryAttention", "q k v pk pv l t", "y nk nv", &attributes);
    let inputs = [
        ramp(&[1, 1, 16], 7),
        ramp(&[1, 1, 8], 5),
        ramp(&[1, 1, 8], 3),
        ramp(&[1, 1, 2, 8], 9),
        ramp(&[1, 1, 2, 8], 11),
        lengths(&[2]),
    ];
    let imported = model.graph("y nk nv");
    let outputs = precast_ir::eval::eval_graph(&imported, &inputs).unwrap();
    assert_close(
        &outputs[..1],
        &[floats(
            &[1, 1, 16],
            &[
                -1.37747, 0.377264, 0.39975, 0.422236, 0.444722, -0.891255, -0.709485, 1.04525, 0.369685, 0.548484,
                0.136366, -0.275753, -0.687871, -1.32848, 0.68999, 0.868789,
            ],
        )],
    );
    assert_eq!(outputs[1].shape(), [1, 1, 3, 8]);
}

#[test]
fn multi_head_attention_leaves_masked_keys_out() {
    let model = Model::new(17).input("q", DType::F32, &["b", "2", "4"]);
    let model = model.input("k", DType::F32, &["b", "3", "4"]).input("v", DType::F32, &["b", "3", "4"]);
    let model = model.constant("m", Tensor::from_vec(vec![1, 3], vec![1i32, 1, 0]).unwrap());
    let model = model.node("com.microsoft:MultiHeadAttention", "q k v _ m", "y", &[int("num_heads", 2)]);
    let inputs = [ramp(&[1, 2, 4], 7), ramp(&[1, 3, 4], 5), ramp(&[1, 3, 4], 3)];
    assert_close(
        &model.eval("y", &inputs),
        &[floats(&[1, 2, 4], &[-0.973351, -0.793887, -0.218713, 0.531287, -0.230187, -0.855818, -0.221053, 0.528947])],
    );
}

/// Keys or values of one head [1, 1, slots, 8] that begin with those given.
fn in_buffer(filled: &Tensor, slots: usize) -> Tensor {
    let mut elements = filled.to_vec::<f32>().unwrap();
    elements.resize(slots * 8, 9.0);
    floats(&[1, 1, slots, 8], &elements)
}

#[test]
fn group_query_attention_writes_into_a_shared_cache() {
    for (new, window) in [(1, -1), (3, -1), (2, 2)] {
        let size = new.to_string();
        let model = Model::new(17)
            .input("q", DType::F32, &["1", &size, "16"])
            .input("k", DType::F32, &["1", &size, "8"])
            .input("v", DType::F32, &["1", &size, "8"])
            .input("pk", DType::F32, &["1", "1", "p", "8"])
            .input("pv", DType::F32, &["1", "1", "p", "8"])
            .input("l", DType::I32, &["1"])
            .input("t", DType::I32, &[]);
        let attributes = [int("num_heads", 2), int("kv_num_heads", 1), int("local_window_size", window)];
        let model = model.node("com.microsoft:GroupQueryAttention", "q k v pk pv l t", "y nk nv", &attributes);
        let total = 2 + new as i32;
        let given = |past: [Tensor; 2]| {
            let [keys, values] = past;
            let new = [ramp(&[1, new, 16], 7), ramp(&[1, new, 8], 5), ramp(&[1, new, 8], 3)];
            [&new[..], &[keys, values, lengths(&[total - 1]), Tensor::scalar(total)]].concat()
        };
        let past = [ramp(&[1, 1, 2, 8], 9), ramp(&[1, 1, 2, 8], 11)];
        let appended = model.clone().eval("y nk nv", &given(past.clone()));
        let mut shared = model;
        shared.options.shares_caches = true;
        let written = shared.eval("y nk nv", &given(past.map(|past| in_buffer(&past, 6))));
        let expected = [appended[0].clone(), in_buffer(&appended[1], 6), in_buffer(&appended[2], 6)];
        assert_close(&written, &expected);
    }
}
