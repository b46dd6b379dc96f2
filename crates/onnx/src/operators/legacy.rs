//! Opset 6, where it differs from 7: broadcasting had to be asked for and could begin at an axis, and attributes said
//! whether a model is being trained.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn};
use precast_tensor::Dim;

use super::{elementwise, matmul, norm, window};
use crate::import::{Fault, Import, NodeCx};

/// Rows of this family.
pub(super) const IMPORTS: &[Import] = &[
    Import::onnx("Add", 6, 1, |cx| binary(cx, BinaryFn::Add)),
    Import::onnx("And", 1, 1, |cx| binary(cx, BinaryFn::And)),
    Import::onnx("AveragePool", 1, 1, window::average_pool),
    Import::onnx("BatchNormalization", 6, 1, batch_normalization),
    Import::onnx("Div", 6, 1, |cx| binary(cx, BinaryFn::Div)),
    Import::onnx("Dropout", 6, 1, dropout),
    Import::onnx("Equal", 1, 1, |cx| compare(cx, CompareFn::Eq)),
    Import::onnx("Gemm", 6, 1, gemm),
    Import::onnx("Greater", 1, 1, |cx| compare(cx, CompareFn::Gt)),
    Import::onnx("Less", 1, 1, |cx| compare(cx, CompareFn::Lt)),
    Import::onnx("Mul", 6, 1, |cx| binary(cx, BinaryFn::Mul)),
    Import::onnx("Or", 1, 1, |cx| binary(cx, BinaryFn::Or)),
    Import::onnx("PRelu", 6, 1, prelu),
    Import::onnx("Pow", 1, 1, |cx| binary(cx, BinaryFn::Pow)),
    Import::onnx("Sub", 6, 1, |cx| binary(cx, BinaryFn::Sub)),
    Import::onnx("Xor", 1, 1, |cx| binary(cx, BinaryFn::Xor)),
];

type Outputs = Result<Vec<ValueId>, Fault>;

fn binary(cx: &mut NodeCx<'_, '_>, func: BinaryFn) -> Outputs {
    let (a, b) = operands(cx)?;
    Ok(vec![cx.binary(func, a, b)?])
}

fn compare(cx: &mut NodeCx<'_, '_>, func: CompareFn) -> Outputs {
    let (a, b) = operands(cx)?;
    Ok(vec![cx.compare(func, a, b)?])
}

/// The inputs, the second one with axes of size 1 after it so that it begins at `axis` of the first.
fn operands(cx: &mut NodeCx<'_, '_>) -> Result<(ValueId, ValueId), Fault> {
    let (a, b) = (cx.input(0)?, cx.input(1)?);
    let axis = cx.attributes().int("axis")?;
    match axis {
        Some(axis) if cx.flag("broadcast", false)? => {
            let axis = cx.axis(axis, cx.rank(a))?;
            Ok((a, aligned(cx, a, b, axis)?))
        }
        _ => {
            cx.flag("broadcast", false)?;
            Ok((a, b))
        }
    }
}

fn aligned(cx: &mut NodeCx<'_, '_>, a: ValueId, b: ValueId, axis: usize) -> Result<ValueId, Fault> {
    let mut dims = cx.dims(b);
    let Some(after) = cx.rank(a).checked_sub(axis + dims.len()) else {
        return Err(Fault::Invalid(format!("{} does not fit {} from axis {axis} on", cx.ty(b), cx.ty(a))));
    };
    dims.extend(vec![Dim::ONE; after]);
    cx.reshape(b, dims)
}

/// One slope for all, or one a channel.
fn prelu(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (x, mut slope) = (cx.input(0)?, cx.input(1)?);
    if cx.rank(slope) == 1 && cx.rank(x) > 1 {
        slope = aligned(cx, x, slope, 1)?;
    }
    Ok(vec![cx.binary(BinaryFn::Prelu, x, slope)?])
}

fn gemm(cx: &mut NodeCx<'_, '_>) -> Outputs {
    // The third operand broadcasts as it does from opset 7 on.
    cx.flag("broadcast", false)?;
    matmul::gemm(cx)
}

fn batch_normalization(cx: &mut NodeCx<'_, '_>) -> Outputs {
    // The statistics are outputs of training alone, so a node without them is for inference whatever the flag says.
    if !cx.flag("is_test", false)? && (1..cx.output_count()).any(|output| cx.is_wanted(output)) {
        return Err(Fault::Unsupported("is_test=0 is not covered: export the model for inference".to_string()));
    }
    norm::batch_normalization(cx)
}

fn dropout(cx: &mut NodeCx<'_, '_>) -> Outputs {
    cx.flag("is_test", false)?;
    elementwise::dropout_7(cx)
}
