//! Attention operators of com.microsoft that onnxruntime has no kernel of on a CPU: each is held against an operator that it
//! becomes for some inputs, and that is held against onnxruntime elsewhere.

use precast_tensor::{DType, Tensor};

use crate::compare::{assert_close, ramp};
use crate::model::{Model, bools, float, floats, int, int_tensor, ints};

fn i32s(shape: &[usize], elements: &[i32]) -> Tensor {
    Tensor::from_vec(shape, elements.to_vec()).unwrap()
}

/// Elements of an f32 tensor.
fn elements(x: &Tensor) -> Vec<f32> {
    x.to_f64_vec().into_iter().map(|x| x as f32).collect()
}

/// Rows `from..to` of a tensor [rows, width], as a tensor of a shape.
fn rows(x: &Tensor, from: usize, to: usize, shape: &[usize]) -> Tensor {
    let width = x.shape()[1];
    floats(shape, &elements(x)[from * width..to * width])
}

const TWO_HEADS: i64 = 2;

/// Three sequences of 1, 2 and 4 tokens, packed: each gives what attention among its own tokens gives.
#[test]
fn packed_tokens_see_their_own_sequence() {
    let bounds = [0usize, 1, 3, 7];
    let x = [3, 5, 7].map(|step| ramp(&[7, 4], step));
    let bias = ramp(&[3, 2, 4, 4], 9);
    let packed = Model::new(17)
        .input("q", DType::F32, &["7", "4"])
        .input("k", DType::F32, &["7", "4"])
        .input("v", DType::F32, &["7", "4"])
        .input("o", DType::I32, &["3", "4"])
        .input("c", DType::I32, &["4"])
        .input("b", DType::F32, &["3", "2", "4", "4"])
        .node("com.microsoft:PackedMultiHeadAttention", "q k v _ o c b", "y", &[int("num_heads", TWO_HEADS)]);
    let offsets = i32s(&[3, 4], &[0, 4, 5, 8, 9, 10, 11, 1, 2, 3, 6, 7]);
    let cumulated = i32s(&[4], &bounds.map(|bound| bound as i32));
    let [q, k, v] = x.clone();
    let y = packed.eval("y", &[q, k, v, offsets, cumulated, bias.clone()]).remove(0);
    for (sequence, bound) in bounds.windows(2).enumerate() {
        let length = bound[1] - bound[0];
        let size = length.to_string();
        let dims = ["1", &size, "4"];
        let alone = Model::new(17)
            .input("q", DType::F32, &dims)
            .input("k", DType::F32, &dims)
            .input("v", DType::F32, &dims)
            .input("b", DType::F32, &["1", "2", &size, &size])
            .node("com.microsoft:MultiHeadAttention", "q k v _ _ b", "y", &[int("num_heads", TWO_HEADS)]);
        let own_bias: Vec<f32> = (0..2 * length * length)
            .map(|at| (at / (length * length), at / length % length, at % length))
            .map(|(head, row, column)| elements(&bias)[((sequence * 2 + head) * 4 + row) * 4 + column])
            .collect();
        let mut inputs: Vec<Tensor> = x.iter().map(|x| rows(x, bound[0], bound[1], &[1, length, 4])).collect();
        inputs.push(floats(&[1, 2, length, length], &own_bias));
        assert_close(&[rows(&y, bound[0], bound[1], &[1, length, 4])], &alone.eval("y", &inputs));
    }
}

#[test]
fn packed_attention_is_its_projection_and_packed_heads() {
    let model = Model::new(17)
        .input("x", DType::F32, &["5", "3"])
        .constant("w", ramp(&[3, 12], 5))
        .constant("b", ramp(&[12], 7))
        .constant("o", i32s(&[2, 3], &[0, 1, 3, 4, 5, 2]))
        .constant("c", i32s(&[3], &[0, 2, 5]))
        .node("com.microsoft:PackedAttention", "x w b o c", "y", &[int("num_heads", TWO_HEADS)])
        .node("MatMul", "x w", "p", &[])
        .node("Add", "p b", "a", &[])
        .node("Split", "a", "q k v", &[int("axis", 1)])
        .node("com.microsoft:PackedMultiHeadAttention", "q k v _ o c", "z", &[int("num_heads", TWO_HEADS)]);
    let [y, z] = <[Tensor; 2]>::try_from(model.eval("y z", &[ramp(&[5, 3], 4)])).unwrap();
    assert_close(&[y], &[z]);
}

#[test]
fn padding_comes_back_as_zeros_where_it_was() {
    let x = ramp(&[2, 3, 2], 5);
    let model = Model::new(17)
        .input("x", DType::F32, &["5", "2"])
        .constant("o", i32s(&[2, 3], &[0, 1, 3, 4, 5, 2]))
        .node("com.microsoft:RestorePadding", "x o", "y", &[]);
    let all = elements(&x);
    let kept: Vec<f32> = [0, 1, 3, 4, 5].iter().flat_map(|&token| all[2 * token..2 * token + 2].to_vec()).collect();
    let mut expected = all;
    expected[4..6].fill(0.0);
    assert_eq!(model.eval("y", &[floats(&[5, 2], &kept)]), [floats(&[2, 3, 2], &expected)]);
}

#[test]
fn removed_padding_leaves_offsets_and_bounds() {
    let model = Model::new(17).input("x", DType::F32, &["3", "4", "1"]).constant("n", i32s(&[3], &[1, 2, 4])).node(
        "com.microsoft:RemovePadding",
        "x n",
        "y o c m",
        &[],
    );
    let x = floats(&[3, 4, 1], &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    let expected = [
        floats(&[7, 1], &[0.0, 4.0, 5.0, 8.0, 9.0, 10.0, 11.0]),
        i32s(&[3, 4], &[0, 4, 5, 8, 9, 10, 11, 1, 2, 3, 6, 7]),
        i32s(&[4], &[0, 1, 3, 7]),
        i32s(&[1], &[4]),
    ];
    assert_eq!(model.eval("y o c m", &[x]), expected);
}

/// Two sequences whose blocks lie in any order: 3 cached tokens and 2 new ones, and 3 new ones alone.
#[test]
fn pages_are_read_and_written_where_the_table_says() {
    // Blocks of two slots; the first sequence has blocks 4, 0 and 2, the second 1 and 3.
    let table = i32s(&[2, 3], &[4, 0, 2, 1, 3, -1]);
    let (keys, values) = (ramp(&[5 * 2, 4], 3), ramp(&[5 * 2, 4], 5));
    let new = [7, 4, 9].map(|step| ramp(&[5, 4], step));
    let attributes = [int("num_heads", TWO_HEADS), int("kv_num_heads", TWO_HEADS)];
    let cache = ["5", "2", "2", "2"];
    let model = Model::new(17)
        .input("q", DType::F32, &["5", "4"])
        .input("k", DType::F32, &["5", "4"])
        .input("v", DType::F32, &["5", "4"])
        .input("a", DType::F32, &cache)
        .input("b", DType::F32, &cache)
        .constant("c", i32s(&[3], &[0, 2, 5]))
        .constant("p", i32s(&[2], &[3, 0]))
        .constant("t", table)
        .node("com.microsoft:PagedAttention", "q k v a b c p t", "y e f", &attributes);
    let [q, k, v] = new.clone();
    let caches = [&keys, &values].map(|cache| floats(&[5, 2, 2, 2], &elements(cache)));
    let [cached_keys, cached_values] = caches;
    let found = model.eval("y e f", &[q, k, v, cached_keys, cached_values]);
    let slots: [&[usize]; 2] = [&[8, 9, 0, 1, 4], &[2, 3, 6]];
    for ((slots, past), from) in slots.into_iter().zip([3, 0]).zip([0, 2]) {
        let (length, all) = (slots.len() - past, slots.len());
        // Keys and values of the whole sequence: the cached ones from their slots, then the new ones.
        let sequence = |cache: &Tensor, new: &Tensor| {
            let cached = slots[..past].iter().flat_map(|&slot| elements(cache)[slot * 4..slot * 4 + 4].to_vec());
            let own = elements(new)[from * 4..(from + length) * 4].to_vec();
            floats(&[1, all, 4], &cached.chain(own).collect::<Vec<f32>>())
        };
        let (size, whole) = (length.to_string(), all.to_string());
        let mask: Vec<bool> = (0..length * all).map(|at| at % all <= past + at / all).collect();
        let alone = Model::new(23)
            .input("q", DType::F32, &["1", &size, "4"])
            .input("k", DType::F32, &["1", &whole, "4"])
            .input("v", DType::F32, &["1", &whole, "4"])
            .constant("m", bools(&[length, all], &mask))
            .node("Attention", "q k v m", "y", &[int("q_num_heads", TWO_HEADS), int("kv_num_heads", TWO_HEADS)]);
        let inputs =
            [rows(&new[0], from, from + length, &[1, length, 4]), sequence(&keys, &new[1]), sequence(&values, &new[2])];
        assert_close(&[rows(&found[0], from, from + length, &[1, length, 4])], &alone.eval("y", &inputs));
        for (written, new) in found[1..].iter().zip(&new[1..]) {
            for (token, &slot) in slots[past..].iter().enumerate() {
                let token = (from + token) * 4;
                assert_eq!(elements(written)[slot * 4..slot * 4 + 4], elements(new)[token..token + 4]);
            }
        }
    }
    // Slots that no new token has are as they were.
    assert_eq!(elements(&found[1])[7 * 4..8 * 4], elements(&keys)[7 * 4..8 * 4]);
}

#[test]
fn a_page_that_is_not_to_be_written_stays() {
    let attributes = [int("num_heads", 1), int("kv_num_heads", 1)];
    let model = Model::new(17)
        .input("q", DType::F32, &["2", "2"])
        .input("a", DType::F32, &["2", "2", "1", "2"])
        .constant("c", i32s(&[2], &[0, 2]))
        .constant("p", i32s(&[1], &[0]))
        .constant("t", i32s(&[1, 2], &[1, 0]))
        .constant("s", i32s(&[2], &[2, -1]))
        .node("com.microsoft:PagedAttention", "q q q a a c p t _ _ s", "y e f", &attributes);
    let cache = ramp(&[2, 2, 1, 2], 3);
    let q = floats(&[2, 2], &[5.0, 6.0, 7.0, 8.0]);
    let mut expected = elements(&cache);
    expected[4..6].copy_from_slice(&[5.0, 6.0]);
    assert_eq!(model.eval("e", &[q, cache]), [floats(&[2, 2, 1, 2], &expected)]);
}

#[test]
fn a_step_of_a_decoder_is_attention_behind_its_cache() {
    let attributes = [int("num_heads", TWO_HEADS)];
    let model = Model::new(17)
        .input("x", DType::F32, &["2", "1", "3"])
        .input("p", DType::F32, &["2", "2", "2", "3", "2"])
        .constant("w", ramp(&[3, 12], 5))
        .constant("b", ramp(&[12], 7))
        .constant("m", i32s(&[2, 4], &[1, 1, 0, 1, 0, 1, 1, 1]))
        .constant("n", i32s(&[1], &[3]))
        .node("com.microsoft:DecoderMaskedSelfAttention", "x w b m p _ n", "y r", &attributes)
        .node("com.microsoft:Attention", "x w b m p", "z s", &attributes);
    let found = model.eval("y r z s", &[ramp(&[2, 1, 3], 4), ramp(&[2, 2, 2, 3, 2], 3)]);
    assert_close(&found[..2], &found[2..]);
}

#[test]
fn one_token_of_several_heads_is_attention_behind_its_cache() {
    let attributes = [int("num_heads", TWO_HEADS)];
    let model = Model::new(17)
        .input("q", DType::F32, &["2", "1", "4"])
        .input("k", DType::F32, &["2", "1", "4"])
        .input("v", DType::F32, &["2", "1", "4"])
        .input("e", DType::F32, &["2", "2", "3", "2"])
        .constant("b", ramp(&[12], 7))
        .constant("m", i32s(&[2, 4], &[1, 1, 0, 1, 0, 1, 1, 1]))
        .node("com.microsoft:DecoderMaskedMultiHeadAttention", "q k v m _ e e _ _ _ b", "y g h", &attributes)
        .node("com.microsoft:MultiHeadAttention", "q k v b m _ e e", "z r s", &attributes);
    let step = |step: usize| ramp(&[2, 1, 4], step);
    let found = model.eval("y g h z r s", &[step(3), step(5), step(7), ramp(&[2, 2, 3, 2], 4)]);
    assert_close(&found[..3], &found[3..]);
}

/// DecoderAttention in its four stages: alone, with a past, on another sequence, and on that sequence's cache.
#[test]
fn attention_of_a_decoder_in_every_stage() {
    let stage = |is_cross: bool, has_past: bool| {
        let flag = |value: bool| bools(&[1], &[value]);
        let model = Model::new(17)
            .input("q", DType::F32, &["2", "3", "4"])
            .input("k", DType::F32, &["5", "3", "4"])
            .input("e", DType::F32, &["3", "2", "3", "2"])
            .input("f", DType::F32, &["3", "2", "3", "2"])
            .constant("u", ramp(&[4, 4], 5))
            .constant("w", ramp(&[4, 8], 7))
            .constant("b", ramp(&[12], 3))
            .constant("s", flag(is_cross))
            .constant("p", flag(has_past))
            .constant("l", flag(true))
            .constant("n", flag(false))
            .ints("first", &[0])
            .ints("4", &[4])
            .ints("8", &[8])
            .ints("12", &[12])
            .node("com.microsoft:DecoderAttention", "q k u w b _ e f s p l n", "y g h", &[int("num_heads", TWO_HEADS)]);
        // The same by MultiHeadAttention on [batch, length, width].
        let source = if is_cross { "k" } else { "q" };
        let turned = [ints("perm", &[1, 0, 2])];
        let model = model
            .node("Transpose", "q", "qt", &turned)
            .node("Transpose", source, "st", &turned)
            .node("MatMul", "qt u", "qu", &[])
            .node("Slice", "b first 4", "bq", &[])
            .node("Add", "qu bq", "qb", &[])
            .node("MatMul", "st w", "sw", &[])
            .node("Slice", "b 4 12", "bs", &[])
            .node("Add", "sw bs", "sb", &[])
            .node("Split", "sb", "kb vb", &[int("axis", 2)]);
        let heads = [int("num_heads", TWO_HEADS)];
        let model = match (is_cross, has_past) {
            (false, true) => model.node("com.microsoft:MultiHeadAttention", "qb kb vb _ _ _ e f", "t", &heads),
            (true, true) => model.node("com.microsoft:MultiHeadAttention", "qb e f", "t", &heads),
            (_, false) => model.node("com.microsoft:MultiHeadAttention", "qb kb vb", "t", &heads),
        };
        model.node("Transpose", "t", "z", &turned)
    };
    let inputs = [ramp(&[2, 3, 4], 5), ramp(&[5, 3, 4], 9), ramp(&[3, 2, 3, 2], 4), ramp(&[3, 2, 3, 2], 7)];
    for (is_cross, has_past) in [(false, false), (false, true), (true, false), (true, true)] {
        let found = stage(is_cross, has_past).eval("y z", &inputs);
        assert_close(&found[..1], &found[1..]);
    }
}

/// A window that has all tokens, one that has the token alone, and tokens that all are global.
#[test]
fn a_longformer_sees_a_window_and_what_is_global() {
    let model = |window: i64, globals: &[i32]| {
        Model::new(17)
            .input("x", DType::F32, &["1", "4", "4"])
            .constant("w", ramp(&[4, 12], 5))
            .constant("b", ramp(&[12], 7))
            .constant("v", ramp(&[4, 12], 9))
            .constant("c", ramp(&[12], 4))
            .constant("m", floats(&[1, 4], &[0.0, 0.0, 0.0, -10000.0]))
            .constant("n", i32s(&[1, 4], &[1, 1, 1, 0]))
            .constant("g", i32s(&[1, 4], globals))
            .node(
                "com.microsoft:LongformerAttention",
                "x w b m v c g",
                "y",
                &[int("num_heads", TWO_HEADS), int("window", window)],
            )
            .node(
                "com.microsoft:Attention",
                "x w b n",
                "local",
                &[int("num_heads", TWO_HEADS), float("mask_filter_value", -1e30)],
            )
            .node(
                "com.microsoft:Attention",
                "x v c n",
                "global",
                &[int("num_heads", TWO_HEADS), float("mask_filter_value", -1e30)],
            )
            .node("MatMul", "x w", "p", &[])
            .node("Add", "p b", "a", &[])
            .node("Split", "a", "q k values", &[int("axis", 2)])
    };
    let x = [ramp(&[1, 4, 4], 3)];
    let wide = model(4, &[0; 4]).eval("y local", &x);
    assert_close(&wide[..1], &wide[1..]);
    let global = model(0, &[1; 4]).eval("y global", &x);
    assert_close(&global[..1], &global[1..]);
    let narrow = model(0, &[0; 4]).eval("y values", &x);
    // The last token is padding: it sees nothing, and gives zeros.
    assert_close(&[floats(&[3, 4], &elements(&narrow[0])[..12])], &[floats(&[3, 4], &elements(&narrow[1])[..12])]);
    // One global token: it sees all by its own projection, and all see it.
    let one = model(0, &[1, 0, 0, 0]).eval("y global values", &x);
    assert_close(&[floats(&[4], &elements(&one[0])[..4])], &[floats(&[4], &elements(&one[1])[..4])]);
    assert_ne!(elements(&one[0])[4..8], elements(&one[2])[4..8]);
}

/// The numbers of a head follow one another in the table, whatever its shape says.
#[test]
fn positions_are_biased_by_the_bucket_of_their_distance() {
    let model = |both: i64| {
        Model::new(17)
            .input("t", DType::F32, &["4", "2"])
            .constant("q", int_tensor(&[1], &[3]))
            .constant("k", int_tensor(&[1], &[3]))
            .node(
                "com.microsoft:RelativePositionBias",
                "t q k",
                "y",
                &[int("max_distance", 8), int("is_bidirectional", both)],
            )
    };
    let table = floats(&[4, 2], &[0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0]);
    // One way: what lies ahead is at distance 0; 0 and 1 have buckets, 2 is the first of the wide ones.
    let head = [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0];
    let expected: Vec<f32> = head.iter().copied().chain(head.iter().map(|x| x + 10.0)).collect();
    assert_eq!(model(0).eval("y", &[table.clone()]), [floats(&[1, 2, 3, 3], &expected)]);
    // Both ways: two buckets a side, behind and ahead.
    let head = [0.0, 3.0, 3.0, 1.0, 0.0, 3.0, 1.0, 1.0, 0.0];
    let expected: Vec<f32> = head.iter().copied().chain(head.iter().map(|x| x + 10.0)).collect();
    assert_eq!(model(1).eval("y", &[table]), [floats(&[1, 2, 3, 3], &expected)]);
}

#[test]
fn a_gated_bias_is_the_text_of_the_operator() {
    let model = Model::new(17)
        .input("x", DType::F32, &["2", "3", "4"])
        .constant("b", ramp(&[4], 3))
        .constant("r", ramp(&[1, 2, 3, 3], 5))
        .constant("w", ramp(&[2, 6], 7))
        .constant("c", ramp(&[6], 9))
        .constant("e", ramp(&[1, 2, 1, 1], 4))
        .node("com.microsoft:GatedRelativePositionBias", "x b r w c e", "y", &[int("num_heads", TWO_HEADS)])
        .ints("heads", &[2, 3, 2, 2])
        .ints("halves", &[2, 2, 3, 2, 3])
        .ints("last", &[4])
        .constant("one", floats(&[], &[1.0]))
        .constant("two", floats(&[], &[2.0]))
        .node("Add", "x b", "q", &[])
        .node("Reshape", "q heads", "s", &[])
        .node("Transpose", "s", "t", &[ints("perm", &[0, 2, 1, 3])])
        .node("MatMul", "t w", "m", &[])
        .node("Add", "m c", "l", &[])
        .node("Reshape", "l halves", "h", &[])
        .node("ReduceSum", "h last", "n", &[int("keepdims", 0)])
        .node("Sigmoid", "n", "g", &[])
        .node("Split", "g", "u v", &[int("axis", 3)])
        .node("Mul", "v e", "a", &[])
        .node("Sub", "a one", "d", &[])
        .node("Mul", "u d", "f", &[])
        .node("Add", "f two", "k", &[])
        .node("Mul", "k r", "z", &[]);
    let found = model.eval("y z", &[ramp(&[2, 3, 4], 6)]);
    assert_close(&found[..1], &found[1..]);
}

/// Blocks that see themselves alone are sequences of their own; blocks that see all before them are one sequence.
#[test]
fn sparse_attention_sees_the_blocks_that_are_listed() {
    let heads = [int("num_heads", TWO_HEADS), int("kv_num_heads", 1)];
    let sparse = |columns: &[i32], bounds: &[i32]| {
        Model::new(17)
            .input("q", DType::F32, &["1", "32", "4"])
            .input("k", DType::F32, &["1", "32", "2"])
            .input("v", DType::F32, &["1", "32", "2"])
            .constant("p", Tensor::zeros(DType::F32, [1, 1, 32, 2]).unwrap())
            .constant("r", i32s(&[1, 3], bounds))
            .constant("c", i32s(&[1, columns.len()], columns))
            .constant("t", i32s(&[1], &[32]))
            .node(
                "com.microsoft:SparseAttention",
                "q k v p p r c t t",
                "y a b",
                &[&heads[..], &[int("sparse_block_size", 16)]].concat(),
            )
    };
    let whole = |batch: usize| {
        let (rows, length) = (batch.to_string(), (32 / batch).to_string());
        Model::new(17)
            .input("q", DType::F32, &[&rows, &length, "4"])
            .input("k", DType::F32, &[&rows, &length, "2"])
            .input("v", DType::F32, &[&rows, &length, "2"])
            .constant("s", i32s(&[batch], &vec![32 / batch as i32 - 1; batch]))
            .constant("t", i32s(&[1], &[32 / batch as i32]))
            .node("com.microsoft:GroupQueryAttention", "q k v _ _ s t", "y a b", &heads)
    };
    let shaped = |batch: usize| {
        [(4, 5), (2, 7), (2, 9)]
            .map(|(width, step)| ramp(&[1, 32, width], step).reshaped([batch, 32 / batch, width]).unwrap())
    };
    let apart = sparse(&[0, 1], &[0, 1, 2]).eval("y a", &shaped(1));
    let expected = whole(2).eval("y", &shaped(2)).remove(0);
    assert_close(&apart[..1], &[expected.reshaped([1, 32, 4]).unwrap()]);
    // The caches have the keys in their order.
    assert_eq!(elements(&apart[1]), elements(&shaped(1)[1]));
    let together = sparse(&[0, 0, 1], &[0, 1, 3]).eval("y", &shaped(1));
    assert_close(&together, &whole(1).eval("y", &shaped(1)));
}

/// Three streams that agree are one: sections, turns and plain positions give the same.
#[test]
fn multimodal_positions_that_agree_are_plain_ones() {
    let ids = [3, 0, 5, 1];
    let model = |layout: i64, sections: &[i64]| {
        Model::new(17)
            .input("x", DType::F32, &["1", "4", "24"])
            .constant("i", int_tensor(&[3, 1, 4], &[ids, ids, ids].concat()))
            .constant("j", int_tensor(&[1, 4], &ids))
            .constant("c", ramp(&[6, 6], 5))
            .constant("s", ramp(&[6, 6], 7))
            .node(
                "com.microsoft:MRotaryEmbedding",
                "x i c s",
                "y",
                &[int("mrope_layout", layout), ints("mrope_section", sections)],
            )
            .node("com.microsoft:RotaryEmbedding", "x j c s", "z", &[])
    };
    for (layout, sections) in [(0, [1, 2, 3]), (1, [2, 2, 2]), (0, [6, 0, 0])] {
        let found = model(layout, &sections).eval("y z", &[ramp(&[1, 4, 24], 3)]);
        assert_close(&found[..1], &found[1..]);
    }
}
