use crate::eval::tests::{check_node, node_error};

/// A node whose activations are all of one function, with identity as `affine` of alpha 1.
fn recurrent(func: &str, direction: &str, activation: &str, count: usize, flags: &str) -> String {
    let list = |item: &str| format!("[{}]", vec![item; count].join(", "));
    let given = |flag: &str| flags.split(' ').any(|given| given == flag);
    let inputs: Vec<String> =
        (0..3 + ["bias", "lengths", "h", "c", "peepholes"].iter().filter(|flag| given(flag)).count())
            .map(|input| format!("%{input}"))
            .collect();
    format!(
        "recurrent.{func}({}) {{direction={direction}, hidden=1, activations={}, alphas={}, betas={}, clip={}, \
         input_forget={}, linear_before_reset={}, rounds_state={}, bias={}, lengths={}, initial_h={}, initial_c={}, peepholes={}}}",
        inputs.join(", "),
        list(activation),
        list("1.0"),
        list("0.0"),
        if given("clip") { "2.0" } else { "0.0" },
        given("coupled"),
        given("linear"),
        given("rounded"),
        given("bias"),
        given("lengths"),
        given("h"),
        given("c"),
        given("peepholes"),
    )
}

#[test]
fn an_rnn_carries_its_state_forwards_and_backwards() {
    let inputs = ["f32[3,1,1] [1, 2, 3]", "f32[1,1,1] [1]", "f32[1,1,1] [0.5]"];
    check_node(
        &inputs,
        &recurrent("rnn", "forward", "relu", 1, ""),
        &["f32[3,1,1,1] [1.0, 2.5, 4.25]", "f32[1,1,1] [4.25]"],
    );
    check_node(
        &inputs,
        &recurrent("rnn", "reverse", "relu", 1, ""),
        &["f32[3,1,1,1] [2.75, 3.5, 3.0]", "f32[1,1,1] [2.75]"],
    );
    check_node(
        &["f32[3,1,1] [1, 2, 3]", "f32[2,1,1] [1, 1]", "f32[2,1,1] [0.5, 0.5]", "f32[2,2] [0, 1, 0, 0]"],
        &recurrent("rnn", "bidirectional", "relu", 2, "bias"),
        &["f32[3,2,1,1] [2.0, 2.75, 4.0, 3.5, 6.0, 3.0]", "f32[2,1,1] [6.0, 2.75]"],
    );
}

#[test]
fn every_row_ends_at_its_own_length() {
    let inputs = ["f32[3,2,1] [1, 1, 2, 2, 3, 3]", "f32[1,1,1] [1]", "f32[1,1,1] [1]", "i32[2] [2, 3]"];
    check_node(
        &inputs,
        &recurrent("rnn", "forward", "relu", 1, "lengths"),
        &["f32[3,1,2,1] [1.0, 1.0, 3.0, 3.0, 0.0, 6.0]", "f32[1,2,1] [3.0, 6.0]"],
    );
    check_node(
        &inputs,
        &recurrent("rnn", "reverse", "relu", 1, "lengths"),
        &["f32[3,1,2,1] [3.0, 6.0, 2.0, 5.0, 0.0, 3.0]", "f32[1,2,1] [3.0, 6.0]"],
    );
    let error = node_error(
        &["f32[1,1,1] [1]", "f32[1,1,1] [1]", "f32[1,1,1] [1]", "i32[1] [2]"],
        &recurrent("rnn", "forward", "relu", 1, "lengths"),
        &["f32[1,1,1,1]", "f32[1,1,1]"],
    );
    assert!(error.ends_with("recurrent: length 2 is not within 0..=1"), "{error}");
}

/// With identity for every activation: z = 0.5, r = 2, h = 4 beforehand.
#[test]
fn a_gru_resets_before_or_after_its_product() {
    let inputs = [
        "f32[1,1,1] [1]",
        "f32[1,3,1] [0.5, 2, 1]",
        "f32[1,3,1] [0, 0, 3]",
        "f32[1,6] [0, 0, 0, 0, 0, 10]",
        "f32[1,1,1] [4]",
    ];
    // Candidate 1 + 3*(2*4) + 10 = 35, or 1 + 2*(3*4 + 10) = 45.
    check_node(
        &inputs,
        &recurrent("gru", "forward", "affine", 2, "bias h"),
        &["f32[1,1,1,1] [19.5]", "f32[1,1,1] [19.5]"],
    );
    check_node(
        &inputs,
        &recurrent("gru", "forward", "affine", 2, "bias h linear"),
        &["f32[1,1,1,1] [24.5]", "f32[1,1,1] [24.5]"],
    );
}

/// With identity for every activation: i = 0.5, o = 2, f = 3, candidate 4, c = 10 beforehand.
#[test]
fn an_lstm_couples_clips_and_peeps() {
    let inputs = ["f32[1,1,1] [1]", "f32[1,4,1] [0.5, 2, 3, 4]", "f32[1,4,1] [0, 0, 0, 0]", "f32[1,1,1] [10]"];
    let outputs =
        |h: &str, c: &str| [format!("f32[1,1,1,1] [{h}]"), format!("f32[1,1,1] [{h}]"), format!("f32[1,1,1] [{c}]")];
    let check = |inputs: &[&str], flags: &str, h: &str, c: &str| {
        let expected = outputs(h, c);
        let expected: Vec<&str> = expected.iter().map(String::as_str).collect();
        check_node(inputs, &recurrent("lstm", "forward", "affine", 3, flags), &expected);
    };
    check(&inputs, "c", "64.0", "32.0");
    check(&inputs, "c coupled", "14.0", "7.0");
    // Clipped to 2: f = 2, candidate 2; the state itself is not clipped.
    check(&inputs, "c clip", "42.0", "21.0");
    // i + 10 = 10.5, f - 10 = -7, then C = -70 + 42 = -28 and o + C = -26.
    let peeping = [inputs[0], inputs[1], inputs[2], inputs[3], "f32[1,3] [1, 1, -1]"];
    check(&peeping, "c peepholes", "728.0", "-28.0");
}

#[test]
fn empty_sequences_leave_the_state_as_it_was() {
    check_node(
        &["f32[0,1,1] []", "f32[1,1,1] [1]", "f32[1,1,1] [1]", "f32[1,1,1] [7]"],
        &recurrent("rnn", "forward", "tanh", 1, "h"),
        &["f32[0,1,1,1] []", "f32[1,1,1] [7.0]"],
    );
    check_node(
        &["f32[2,0,1] []", "f32[1,1,1] [1]", "f32[1,1,1] [1]"],
        &recurrent("rnn", "forward", "tanh", 1, ""),
        &["f32[2,1,0,1] []", "f32[1,0,1] []"],
    );
}

#[test]
fn inputs_and_attributes_must_fit() {
    let refusal = |inputs: &[&str], node: &str| node_error(inputs, node, &["f32[1,1,1,1]", "f32[1,1,1]"]);
    let (x, w) = ("f32[1,1,1] [1]", "f32[1,1,1] [1]");
    let cases = [
        (refusal(&[x, w, w], &recurrent("rnn", "forward", "relu", 2, "")), "where 1 each are expected"),
        (refusal(&[x, w, w], &recurrent("rnn", "forward", "not", 1, "")), "not is not a function of floats"),
        (
            refusal(&[x, w, w, w], &recurrent("rnn", "forward", "relu", 1, "c")),
            "only lstm has a cell state and peepholes",
        ),
        (
            refusal(&[x, w, w], &recurrent("gru", "forward", "relu", 2, "")),
            "w is f32[1,1,1] where f32[1,3,1] is expected",
        ),
        (
            refusal(&[x, w, w], &recurrent("rnn", "forward", "relu", 1, "").replace("bias=false", "bias=true")),
            "3 inputs given where 4 are expected",
        ),
    ];
    for (found, expected) in cases {
        assert!(found.ends_with(expected), "{found}");
    }
}

#[test]
fn an_lstm_may_round_its_state_to_256_levels() {
    // i and o are 1, f is 0 and c is the state, so that the new state is the old one as R sees it.
    let inputs = [
        "f32[1,1,1] [0]",
        "f32[1,8,1] [0, 0, 0, 0, 0, 0, 0, 0]",
        "f32[1,8,2] [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1]",
        "f32[1,16] [1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]",
        "f32[1,1,2] [1, 0.5]",
    ];
    let lstm = |flags: &str| recurrent("lstm", "forward", "affine", 3, flags).replace("hidden=1", "hidden=2");
    let outputs =
        |state: &str| [format!("f32[1,1,1,2] {state}"), format!("f32[1,1,2] {state}"), format!("f32[1,1,2] {state}")];
    let [y, y_h, y_c] = outputs("[1.0, 0.5]");
    check_node(&inputs, &lstm("bias h"), &[&y, &y_h, &y_c]);
    // 0.5 is 127.5 levels of 1/255.
    let [y, y_h, y_c] = outputs("[1.0, 0.5019608]");
    check_node(&inputs, &lstm("bias h rounded"), &[&y, &y_h, &y_c]);
    let inputs = ["f32[1,1,1] [1]", "f32[1,1,1] [1]", "f32[1,1,1] [1]"];
    let types = ["f32[1,1,1,1]", "f32[1,1,1]"];
    let error = node_error(&inputs, &recurrent("rnn", "forward", "relu", 1, "rounded"), &types);
    assert!(error.contains("only lstm rounds its state"), "{error}");
}
