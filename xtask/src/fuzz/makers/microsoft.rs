//! Operators of com.microsoft, which onnxruntime itself has.

use precast::{DType, Tensor};

use super::{Made, Maker, on_microsoft};
use crate::fuzz::growing::{Call, Growing, Known, Wanted};
use crate::fuzz::messages::{float, int, sizes, string};

pub const MAKERS: &[Maker] = &[
    on_microsoft("BiasGelu", biased),
    on_microsoft("BiasSoftmax", bias_softmax),
    on_microsoft("DequantizeLinear", dequantize),
    on_microsoft("DynamicQuantizeMatMul", dynamic_product),
    on_microsoft("FastGelu", biased),
    on_microsoft("FusedConv", fused_conv),
    on_microsoft("FusedGemm", fused_gemm),
    on_microsoft("FusedMatMul", fused_product),
    on_microsoft("ExpandDims", expand_dims),
    on_microsoft("Gelu", activation),
    on_microsoft("MatMulIntegerToFloat", product_to_float),
    on_microsoft("QGemm", quantised_gemm),
    on_microsoft("QLinearAdd", quantised_pair),
    on_microsoft("QLinearAveragePool", quantised_pool),
    on_microsoft("QLinearConcat", quantised_concat),
    on_microsoft("QLinearGlobalAveragePool", quantised_pool),
    on_microsoft("QLinearLeakyRelu", quantised_activation),
    on_microsoft("QLinearMul", quantised_pair),
    on_microsoft("QLinearSigmoid", quantised_activation),
    on_microsoft("QLinearSoftmax", quantised_softmax),
    on_microsoft("QLinearWhere", quantised_choice),
    on_microsoft("QuantizeLinear", quantize),
    on_microsoft("QuickGelu", activation),
    on_microsoft("SkipLayerNormalization", skip_norm),
    on_microsoft("SkipSimplifiedLayerNormalization", skip_norm),
];

const BYTES: &[DType] = &[DType::U8, DType::I8];

fn activation(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]));
    growing.add(Call::of(operator, &[&x]).microsoft()).map(drop)
}

fn biased(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(1..=3).filled());
    let bias = growing.operand(DType::F32, &[*x.shape().last()?]);
    growing.add(Call::of(operator, &[&x, &bias]).microsoft()).map(drop)
}

fn bias_softmax(growing: &mut Growing, operator: &str) -> Made {
    let [batch, rows, columns] = [0; 3].map(|_| 1 + growing.random.below(4));
    let x = growing.operand(DType::F32, &[batch, rows, columns]);
    let bias = growing.operand(DType::F32, &[1, rows, columns]);
    let attributes = vec![int("axis", 1), int("is_inner_broadcast", 0)];
    growing.add(Call::of(operator, &[&x, &bias]).with(attributes).microsoft()).map(drop)
}

fn skip_norm(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(2..=3).filled());
    let width = *x.shape().last()?;
    let skip = growing.operand(DType::F32, x.shape());
    let mut inputs = vec![x.clone(), skip, growing.operand(DType::F32, &[width])];
    if operator == "SkipLayerNormalization" {
        inputs.push(growing.operand(DType::F32, &[width]));
    }
    if growing.random.once_in(2) {
        inputs.push(growing.operand(DType::F32, &[width]));
    }
    let call = Call::of(operator, &inputs.iter().collect::<Vec<&Known>>()).microsoft();
    growing.add(call.with(vec![float("epsilon", 0.5)])).map(drop)
}

fn fused_product(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(2..=3).filled());
    let (is_a_turned, is_b_turned) = (growing.random.once_in(2), growing.random.once_in(2));
    let rank = x.rank();
    let inner = x.shape()[if is_a_turned { rank - 2 } else { rank - 1 }];
    let columns = growing.size();
    let shape = if is_b_turned { [columns, inner] } else { [inner, columns] };
    let mut weights_shape = x.shape()[..rank - 2].to_vec();
    weights_shape.extend(shape);
    let weights = growing.operand(DType::F32, &weights_shape);
    let attributes =
        vec![int("transA", i64::from(is_a_turned)), int("transB", i64::from(is_b_turned)), float("alpha", 0.5)];
    growing.add(Call::of(operator, &[&x, &weights]).with(attributes).microsoft()).map(drop)
}

fn fused_gemm(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(2..=2).filled());
    let columns = growing.size();
    let weights = growing.operand(DType::F32, &[x.shape()[1], columns]);
    let bias = growing.operand(DType::F32, &[columns]);
    let attributes = vec![string("activation", growing.choose(&["Relu", "Tanh", "Sigmoid"]))];
    growing.add(Call::of(operator, &[&x, &weights, &bias]).with(attributes).microsoft()).map(drop)
}

fn fused_conv(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(4..=4).filled());
    let outputs = 1 + growing.random.below(4);
    let filter = growing.operand(DType::F32, &[outputs, x.shape()[1], 1, 1]);
    let bias = growing.operand(DType::F32, &[outputs]);
    let attributes = vec![string("activation", growing.choose(&["Relu", "Tanh", "Sigmoid"]))];
    growing.add(Call::of(operator, &[&x, &filter, &bias]).with(attributes).microsoft()).map(drop)
}

/// A power of two, so that no quotient lies a last bit beside a half.
fn scale(growing: &mut Growing) -> Known {
    let value = *growing.random.pick(&[0.125, 0.25, 0.5]);
    growing.scalar(DType::F32, value)
}

/// An even number: onnxruntime adds the zero point before it rounds halves to even, the text of QuantizeLinear after it.
fn zero_point(growing: &mut Growing, dtype: DType) -> Known {
    let value = *growing.random.pick(&[0.0, 2.0, 4.0]);
    growing.scalar(dtype, value)
}

fn quantize(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).exact().filled());
    let to = growing.pick_type(BYTES);
    let (scale, zero) = (scale(growing), zero_point(growing, to));
    growing.add(Call::of(operator, &[&x, &scale, &zero]).microsoft().exact()).map(drop)
}

fn dequantize(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BYTES).filled());
    let (scale, zero) = (scale(growing), zero_point(growing, x.dtype()));
    growing.add(Call::of(operator, &[&x, &scale, &zero]).microsoft().exact()).map(drop)
}

fn quantised_pair(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BYTES).ranks(1..=3).filled());
    let y = growing.operand(x.dtype(), x.shape());
    let [a, b, c] = [0; 3].map(|_| (scale(growing), zero_point(growing, x.dtype())));
    let inputs = [&x, &a.0, &a.1, &y, &b.0, &b.1, &c.0, &c.1];
    growing.add(Call::of(operator, &inputs).microsoft().exact()).map(drop)
}

/// The result of a smooth function may lie a last bit beside a half, so that one level is admitted by comparing as floats.
fn quantised_activation(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BYTES).ranks(1..=3).filled());
    let [a, b] = [0; 2].map(|_| (scale(growing), zero_point(growing, x.dtype())));
    let attributes = if operator == "QLinearLeakyRelu" { vec![float("alpha", 0.25)] } else { vec![] };
    growing.add(Call::of(operator, &[&x, &a.0, &a.1, &b.0, &b.1]).with(attributes).microsoft().exact()).map(drop)
}

fn quantised_concat(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BYTES).ranks(1..=3).filled());
    let y = growing.operand(x.dtype(), x.shape());
    let [a, b, c] = [0; 3].map(|_| (scale(growing), zero_point(growing, x.dtype())));
    let axis = growing.random.below(x.rank());
    let inputs = [&c.0, &c.1, &x, &a.0, &a.1, &y, &b.0, &b.1];
    growing.add(Call::of(operator, &inputs).with(vec![int("axis", axis)]).microsoft().exact()).map(drop)
}

fn product_to_float(growing: &mut Growing, operator: &str) -> Made {
    let a = growing.pick(&Wanted::of(&[DType::U8]).ranks(2..=2).filled());
    let columns = growing.size();
    let dtype = growing.pick_type(BYTES);
    let b = growing.operand(dtype, &[a.shape()[1], columns]);
    let (a_scale, b_scale) = (scale(growing), scale(growing));
    let (a_zero, b_zero) = (zero_point(growing, DType::U8), zero_point(growing, dtype));
    let inputs = [&a, &b, &a_scale, &b_scale, &a_zero, &b_zero];
    growing.add(Call::of(operator, &inputs).microsoft()).map(drop)
}

fn dynamic_product(growing: &mut Growing, operator: &str) -> Made {
    // Extremes of 0 and 255 make every level whole.
    let (rows, inner, columns) = (1 + growing.random.below(3), 2 + growing.random.below(4), growing.size());
    let mut elements: Vec<f32> = (0..rows * inner).map(|_| growing.random.below(256) as f32 / 8.0).collect();
    (elements[0], elements[1]) = (0.0, 255.0 / 8.0);
    let a = growing.constant_of(Tensor::from_vec([rows, inner], elements).ok()?);
    let b = growing.constant_within(DType::U8, &[inner, columns], 0.0, 2.0);
    let b_scale = growing.scalar(DType::F32, 0.0625);
    growing.add(Call::of(operator, &[&a, &b, &b_scale]).microsoft()).map(drop)
}

fn expand_dims(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::I32]).ranks(0..=3));
    let axis = growing.random.below(x.rank() + 1);
    let axis = growing.scalar(DType::I32, axis as f64);
    growing.add(Call::of(operator, &[&x, &axis]).microsoft().exact()).map(drop)
}

fn quantised_gemm(growing: &mut Growing, operator: &str) -> Made {
    let a = growing.pick(&Wanted::of(&[DType::U8]).ranks(2..=2).filled());
    let (columns, is_turned) = (growing.size(), growing.random.once_in(2));
    let inner = a.shape()[1];
    let dtype = growing.pick_type(BYTES);
    let b = growing.operand(dtype, &if is_turned { [columns, inner] } else { [inner, columns] });
    let (a_scale, b_scale, y_scale) = (scale(growing), scale(growing), scale(growing));
    let (a_zero, b_zero) = (zero_point(growing, DType::U8), zero_point(growing, dtype));
    let y_zero = zero_point(growing, DType::U8);
    let bias = growing.constant_within(DType::I32, &[columns], -2.0, 2.0);
    let attributes = vec![int("transB", i64::from(is_turned))];
    let mut inputs = vec![&a, &a_scale, &a_zero, &b, &b_scale, &b_zero, &bias];
    if growing.random.once_in(2) {
        inputs.extend([&y_scale, &y_zero]);
    }
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft().exact()).map(drop)
}

fn quantised_pool(growing: &mut Growing, operator: &str) -> Made {
    // Windows of 2 and 4 elements: means of whole numbers that are exact.
    let [batch, channels] = [0; 2].map(|_| 1 + growing.random.below(3));
    let x = growing.operand(*BYTES.first()?, &[batch, channels, 2, 2]);
    let [a, b] = [0; 2].map(|_| (scale(growing), zero_point(growing, x.dtype())));
    let attributes = if operator == "QLinearAveragePool" { vec![sizes("kernel_shape", &[2, 2])] } else { vec![] };
    growing.add(Call::of(operator, &[&x, &a.0, &a.1, &b.0, &b.1]).with(attributes).microsoft().exact()).map(drop)
}

fn quantised_softmax(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BYTES).ranks(1..=3).filled());
    let (x_scale, x_zero) = (scale(growing), zero_point(growing, x.dtype()));
    // With a scale of 1/256 a share of 1 is beyond the largest level, which onnxruntime lets wrap.
    let y_scale = growing.scalar(DType::F32, 1.0 / 64.0);
    let y_zero = zero_point(growing, x.dtype());
    let attributes = vec![int("axis", x.rank() as i64 - 1), int("opset", 13)];
    let inputs = [&x, &x_scale, &x_zero, &y_scale, &y_zero];
    growing.add(Call::of(operator, &inputs).with(attributes).microsoft().exact()).map(drop)
}

fn quantised_choice(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(BYTES).ranks(1..=3).filled());
    let shape = x.shape().to_vec();
    let (y, condition) = (growing.operand(x.dtype(), &shape), growing.operand(DType::Bool, &shape));
    let [a, b, c] = [0; 3].map(|_| (scale(growing), zero_point(growing, x.dtype())));
    let inputs = [&condition, &x, &a.0, &a.1, &y, &b.0, &b.1, &c.0, &c.1];
    growing.add(Call::of(operator, &inputs).microsoft().exact()).map(drop)
}
