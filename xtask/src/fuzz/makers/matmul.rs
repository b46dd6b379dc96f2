//! Products of matrices.

use precast::DType;

use super::{Made, Maker, on};
use crate::fuzz::growing::{Call, FLOATS, Growing, Known, Wanted};
use crate::fuzz::messages::{float, int, string};

pub const MAKERS: &[Maker] = &[
    on("Det", 11, determinant),
    on("Einsum", 12, einsum),
    on("Gemm", 13, gemm),
    on("MatMul", 13, product),
    on("MatMulInteger", 10, product_of_integers),
];

/// Types that products are made in, integers among them.
const FACTORS: &[DType] =
    &[DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16, DType::F64, DType::I32, DType::I64];

fn product(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FACTORS).ranks(1..=4));
    let (&inner, rows) = x.shape().split_last()?;
    let mut shape = Vec::new();
    if rows.len() > 1 && growing.random.once_in(2) {
        let batch = rows[..rows.len() - 1].to_vec();
        shape.extend(batch.iter().map(|&size| if growing.random.once_in(3) { 1 } else { size }));
    }
    shape.push(inner);
    if shape.len() > 1 || !growing.random.once_in(4) {
        shape.push(growing.size());
    }
    let weights = growing.operand(x.dtype(), &shape);
    growing.add(Call::of(operator, &[&x, &weights])).map(drop)
}

fn gemm(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(2..=2));
    let (is_a_turned, is_b_turned) = (growing.random.once_in(3), growing.random.once_in(2));
    let (rows, inner) = if is_a_turned { (x.shape()[1], x.shape()[0]) } else { (x.shape()[0], x.shape()[1]) };
    let columns = growing.size();
    let shape = if is_b_turned { [columns, inner] } else { [inner, columns] };
    let weights = growing.operand(x.dtype(), &shape);
    let bias = match growing.random.below(5) {
        0 => Known::absent(),
        1 => growing.operand(x.dtype(), &[]),
        2 => growing.operand(x.dtype(), &[rows, 1]),
        3 => growing.operand(x.dtype(), &[rows, columns]),
        _ => growing.operand(x.dtype(), &[columns]),
    };
    // onnxruntime leaves beta out where there is nothing to sum.
    let beta = if inner == 0 { 1.0 } else { *growing.random.pick(&[1.0, 0.25, 0.0]) };
    let attributes = vec![
        int("transA", i64::from(is_a_turned)),
        int("transB", i64::from(is_b_turned)),
        float("alpha", *growing.random.pick(&[1.0, 0.5])),
        float("beta", beta),
    ];
    growing.add(Call::of(operator, &[&x, &weights, &bias]).with(attributes)).map(drop)
}

fn product_of_integers(growing: &mut Growing, operator: &str) -> Made {
    // onnxruntime does not write the result of a sum without terms.
    let x = growing.pick(&Wanted::of(&[DType::U8, DType::I8]).ranks(2..=3).filled());
    let inner = *x.shape().last()?;
    let columns = growing.size();
    let dtype = growing.pick_type(&[DType::U8, DType::I8]);
    let weights = growing.operand(dtype, &[inner, columns]);
    let (zero_a, zero_b) = (growing.operand(x.dtype(), &[]), growing.operand(dtype, &[]));
    let zeros = match growing.random.below(4) {
        0 => [Known::absent(), Known::absent()],
        1 => [zero_a, Known::absent()],
        2 => [Known::absent(), growing.operand(dtype, &[columns])],
        _ => [zero_a, zero_b],
    };
    growing.add(Call::of(operator, &[&x, &weights, &zeros[0], &zeros[1]]).exact()).map(drop)
}

fn einsum(growing: &mut Growing, operator: &str) -> Made {
    let [a, b, c, d] = [0; 4].map(|_| growing.size().min(8));
    let forms: [(&str, &[&[usize]]); 10] = [
        ("ab,bc->ac", &[&[a, b], &[b, c]]),
        ("ab,cb->ca", &[&[a, b], &[c, b]]),
        ("abc,abd->acd", &[&[a, b, c], &[a, b, d]]),
        ("abcd,acde->abe", &[&[a, b, c, d], &[a, c, d, b]]),
        ("ab->b", &[&[a, b]]),
        ("aa->a", &[&[a, a]]),
        ("ab,ab->", &[&[a, b], &[a, b]]),
        ("a,b->ba", &[&[a], &[b]]),
        ("...ab,...bc->...ac", &[&[d, a, b], &[d, b, c]]),
        ("ab,bc,cd->ad", &[&[a, b], &[b, c], &[c, d]]),
    ];
    let (equation, shapes) = *growing.random.pick(&forms);
    let dtype = growing.pick_type(FLOATS);
    let operands: Vec<Known> = shapes.iter().map(|shape| growing.operand(dtype, shape)).collect();
    let call = Call::of(operator, &operands.iter().collect::<Vec<&Known>>());
    growing.add(call.with(vec![string("equation", equation)])).map(drop)
}

fn determinant(growing: &mut Growing, operator: &str) -> Made {
    let size = 1 + growing.random.below(4);
    let mut shape = growing.shape(0..=1);
    shape.extend([size, size]);
    let dtype = growing.pick_type(&[DType::F32, DType::F64]);
    let x = growing.operand(dtype, &shape);
    growing.add(Call::of(operator, &[&x])).map(drop)
}
