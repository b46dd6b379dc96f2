use crate::op::{CachedAttention, RotaryFn};
use crate::ops::test_tensor::{f32s, infer, ints};
use precast_tensor::{DType, Tensor};

fn attention(heads: usize, kv_heads: usize) -> CachedAttention {
    CachedAttention {
        heads,
        kv_heads,
        scale: 1.0,
        softcap: 0.0,
        window: 0,
        rotary: RotaryFn::None,
        positions: false,
        sinks: false,
        paged: false,
    }
}

fn lengths(lengths: &[i128]) -> Tensor {
    ints(DType::I32, &[lengths.len()], lengths)
}

/// y, new keys and new values as numbers.
fn run(op: CachedAttention, inputs: &[Tensor]) -> Vec<Vec<f64>> {
    let outputs = crate::op::Op::from(op).eval(inputs).unwrap();
    outputs.iter().map(Tensor::to_f64_vec).collect()
}

#[test]
fn a_first_token_sees_itself_alone() {
    // Two query heads share a key head of size 1: queries 5 and 7, key 2, value 3.
    let cache = f32s(&[1, 1, 2, 1], &[100.0, 200.0]);
    let inputs = [f32s(&[1, 1, 4], &[5.0, 7.0, 2.0, 3.0]), cache.clone(), cache, lengths(&[0])];
    assert_eq!(run(attention(2, 1), &inputs), [vec![3.0, 3.0], vec![2.0], vec![3.0]]);
}

#[test]
fn filled_slots_and_earlier_new_tokens_are_seen() {
    // All scores are equal, so a result is the mean of the values that are seen: 10, then 4 and 8.
    let joint = f32s(&[1, 2, 3], &[0.0, 1.0, 4.0, 0.0, 1.0, 8.0]);
    let inputs = [joint, f32s(&[1, 1, 3, 1], &[1.0; 3]), f32s(&[1, 1, 3, 1], &[10.0, 99.0, 99.0]), lengths(&[1])];
    assert_eq!(run(attention(1, 1), &inputs)[0], [7.0, 22.0 / 3.0].map(|mean: f64| f64::from(mean as f32)));
}

#[test]
fn a_window_sees_the_last_tokens_of_a_ring() {
    // Three slots hold tokens 3, 4 and 2 of five. A window of two sees token 4 and the new one.
    let inputs = [
        f32s(&[1, 1, 3], &[0.0, 1.0, 6.0]),
        f32s(&[1, 1, 3, 1], &[1.0; 3]),
        f32s(&[1, 1, 3, 1], &[30.0, 40.0, 20.0]),
        lengths(&[5]),
    ];
    assert_eq!(run(CachedAttention { window: 2, ..attention(1, 1) }, &inputs)[0], [23.0]);
    assert_eq!(run(CachedAttention { window: 9, ..attention(1, 1) }, &inputs)[0], [24.0]);
}

#[test]
fn pages_are_seen_in_the_order_of_their_row() {
    // Tokens 10 and 20 lie in page 2, token 40 in page 0, of which the rest is nobody's yet.
    let values = f32s(&[3, 1, 2, 1], &[40.0, 99.0, 99.0, 99.0, 10.0, 20.0]);
    let keys = f32s(&[3, 1, 2, 1], &[1.0; 6]);
    let run = |op: CachedAttention, cached: i128, pages: &[i128]| {
        let pages = ints(DType::I32, &[1, 2], pages);
        let inputs = [f32s(&[1, 1, 3], &[0.0, 1.0, 6.0]), keys.clone(), values.clone(), lengths(&[cached]), pages];
        run(op, &inputs)[0][0]
    };
    let paged = CachedAttention { paged: true, ..attention(1, 1) };
    assert_eq!(run(paged.clone(), 3, &[2, 0]), 19.0);
    assert_eq!(run(paged.clone(), 2, &[2, 0]), 12.0);
    assert_eq!(run(CachedAttention { window: 2, ..paged.clone() }, 3, &[2, 0]), 23.0);
    // A page that there is not holds nothing, and nothing is seen behind the last page.
    assert_eq!(run(paged.clone(), 3, &[-1, 0]), 23.0);
    assert_eq!(run(paged.clone(), 3, &[2, 3]), 12.0);
    assert_eq!(run(paged, 9, &[2, 2]), f64::from(66.0f32 / 5.0));
}

#[test]
fn keys_are_turned_by_their_position() {
    let tables = [f32s(&[2, 1], &[1.0, 0.0]), f32s(&[2, 1], &[0.0, 1.0])];
    let joint = f32s(&[1, 1, 6], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let cache = f32s(&[1, 1, 1, 2], &[0.0, 0.0]);
    for (rotary, cached, expected) in
        [(RotaryFn::Half, 0, [3.0, 4.0]), (RotaryFn::Half, 1, [-4.0, 3.0]), (RotaryFn::Interleaved, 7, [-4.0, 3.0])]
    {
        let mut inputs = vec![joint.clone(), cache.clone(), cache.clone(), lengths(&[cached])];
        inputs.extend(tables.clone());
        assert_eq!(run(CachedAttention { rotary, ..attention(1, 1) }, &inputs)[1], expected);
    }
}

#[test]
fn a_sink_takes_a_part_of_the_weight() {
    let cache = f32s(&[1, 1, 1, 1], &[0.0]);
    let inputs = [f32s(&[1, 1, 3], &[0.0, 1.0, 6.0]), cache.clone(), cache, lengths(&[0]), f32s(&[1], &[0.0])];
    assert_eq!(run(CachedAttention { sinks: true, ..attention(1, 1) }, &inputs)[0], [3.0]);
}

#[test]
fn operands_that_do_not_fit_are_refused_by_name() {
    let types = ["f32[b,l,32]", "f32[b,1,s,8]", "f32[b,1,s,8]", "i32[b]"];
    assert_eq!(infer(attention(2, 1), &types), "f32[b,l,16] f32[b,1,l,8] f32[b,1,l,8]");
    let wrong = ["f32[b,l,30]", "f32[b,1,s,8]", "f32[b,1,s,8]", "i32[b]"];
    assert!(infer(attention(2, 1), &wrong).contains("a width of 30; 32 was expected"));
    assert!(infer(attention(3, 2), &types).contains("3 query heads cannot share 2 key heads"));
    let lengths = ["f32[b,l,32]", "f32[b,1,s,8]", "f32[b,1,s,8]", "i64[b]"];
    assert!(infer(attention(2, 1), &lengths).contains("lengths: i64[b] found where i32[b] is expected"));
}
