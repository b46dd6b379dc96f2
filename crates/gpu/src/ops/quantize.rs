//! Conversion between reals and small integers by scale and zero point.

use precast_ir::op::{Dequantize, Quantize, Unpack};
use precast_tensor::DType;

use crate::element::{element, memory_type, value_type};
use crate::kernel::Lowered;
use crate::nest::{Kernel, Param, signed};
use crate::ops::elementwise::{Pointwise, Source, Target, cast};
use crate::site::{Site, dense_strides};

/// saturate(round(x / scale) + zero point).
pub fn lower_quantize(site: &Site, op: &Quantize) -> Option<Lowered> {
    let (least, most) = op.to.int_range().filter(|_| op.to.bits() <= 32)?;
    let (x, scale) = (cast(site.dtype(0), op.precision, "a0")?, cast(site.dtype(1), op.precision, "a1")?);
    let ty = value_type(op.precision)?;
    let quotient = crate::element::round(op.precision, "x / scale");
    let zero_point = if site.node.inputs.len() > 2 { "(i64)a2" } else { "0" };
    // Quotients beyond 2^40 saturate whatever the zero point is, and leave room to add it.
    let expressions = format!(
        "const {ty} x = {x}, scale = {scale};
i64 q = to_int<i64>(clamp_float(of_rint({quotient}), ({ty})-1.0e12, ({ty})1.0e12)) + {zero_point};
q = q < {least}ll ? {least}ll : q > {most}ll ? {most}ll : q;
"
    );
    lower(site, op.axis, op.block, op.to, "quantize", expressions, "q")
}

/// (x - zero point) * scale.
pub fn lower_dequantize(site: &Site, op: &Dequantize) -> Option<Lowered> {
    let dtype = site.dtype(0);
    if dtype.is_float() || dtype.bits() > 32 {
        return None;
    }
    let ty = if op.to == DType::F64 || site.dtype(1) == DType::F64 { "f64" } else { "f32" };
    let zero_point = if site.node.inputs.len() > 2 { "(i64)a2" } else { "0" };
    let value = format!("({ty})((i64)a0 - {zero_point}) * ({ty})a1");
    let from = if ty == "f64" { DType::F64 } else { DType::F32 };
    let expressions = format!("const {ty} r = {value};\n");
    let value = cast(from, op.to, "r")?;
    lower(site, op.axis, op.block, op.to, "dequantize", expressions, &value)
}

/// Bytes to the elements in them.
pub fn lower_unpack(site: &Site, op: &Unpack) -> Option<Lowered> {
    let is_plain = |shape: &[usize], strides: Vec<usize>| strides == dense_strides(shape, false);
    if !is_plain(&site.shape(0), site.strides(0)) || !is_plain(&site.out_shape(0), site.out_strides(0)) {
        return None;
    }
    let (bits, per_byte) = (op.to.bits(), op.per_byte()?);
    let (mask, (least, _)) = ((1_u32 << bits) - 1, op.to.int_range()?);
    let element =
        element(op.to, &format!("(i32)(x[at / {per_byte}] >> ({bits} * (at % {per_byte})) & {mask}) + ({least})"));
    let params = vec![Param::read(0, "x", "u8"), Param::write(0, "y", memory_type(op.to)?)];
    let count = site.out_shape(0).iter().product();
    let body = format!("y[at] = {element};\n");
    Some(Lowered::one("unpack", Kernel::new("unpack", params).for_each(count, "u64", &body)))
}

/// A pointwise kernel of x, scale and zero point. Blocks of an axis are an axis of their own, so they have to divide it.
fn lower(
    site: &Site,
    axis: usize,
    block: usize,
    to: DType,
    name: &'static str,
    expressions: String,
    value: &str,
) -> Option<Lowered> {
    memory_type(to)?;
    let mut shape = site.shape(0);
    let rank = shape.len();
    let mut strides: Vec<Vec<i64>> = vec![signed(&site.strides(0))];
    for input in 1..site.node.inputs.len() {
        let own = signed(&site.strides(input));
        let is_scalar = site.shape(input).iter().product::<usize>() == 1;
        strides.push(match block {
            0 if is_scalar => vec![0; rank],
            0 => (0..rank).map(|at| if at == axis { own[0] } else { 0 }).collect(),
            _ => own,
        });
    }
    strides.push(signed(&site.out_strides(0)));
    if block > 0 {
        if !shape[axis].is_multiple_of(block) {
            return None;
        }
        shape[axis] /= block;
        shape.insert(axis + 1, block);
        let parameters = 1..strides.len() - 1;
        for (operand, strides) in strides.iter_mut().enumerate() {
            let stride = strides[axis];
            if parameters.contains(&operand) {
                strides.insert(axis + 1, 0);
            } else {
                strides.insert(axis + 1, stride);
                strides[axis] = stride * block as i64;
            }
        }
    }
    let out = strides.pop()?;
    let sources = strides.into_iter().enumerate();
    let sources = sources.map(|(input, strides)| Source { input, dtype: site.dtype(input), strides }).collect();
    let targets = vec![Target { dtype: to, strides: out, value: value.to_string() }];
    let (launch, width) = Pointwise { entry: name, shape, sources, targets, expressions }.launch()?;
    Some(Lowered::one(format!("{name}.{width}"), launch))
}
