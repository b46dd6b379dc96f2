//! Conversion between reals and small integers by scale and zero point.

use precast_ir::op::{Dequantize, Quantize, Unpack};
use precast_ir::{Graph, Node, Op, ValueId};
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

/// `dequantize(unpack(bytes))` with blocks along the last axis: a thread makes the elements of a word of bytes.
pub fn lower_unpacked(site: &Site, body: &Graph) -> Option<Lowered> {
    let [Node { op: Op::Unpack(unpack), .. }, Node { op: Op::Dequantize(op), inputs, .. }] = body.nodes() else {
        return None;
    };
    let place = |value: ValueId| body.inputs().iter().position(|&input| input == value);
    let (bits, block, shape) = (unpack.to.bits() as usize, op.block, site.out_shape(0));
    let (&k, per_word) = (shape.last()?, 32 / bits);
    let is_whole = k > 0 && block > 0 && k.is_multiple_of(per_word) && block.is_multiple_of(per_word);
    let is_dense = (0..site.node.inputs.len()).all(|at| site.strides(at) == dense_strides(&site.shape(at), false))
        && site.out_strides(0) == dense_strides(&shape, false);
    let (scale, to) = (place(inputs[1])?, memory_type(op.to)?);
    let is_float = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16 | DType::F32);
    if !is_whole || !is_dense || op.axis + 1 != shape.len() || !is_float(op.to) || !is_float(site.dtype(scale)) {
        return None;
    }
    let zeros = inputs.get(2).map(|&value| place(value));
    let mut params = vec![Param::read(0, "x", "u32"), Param::read(scale, "s", memory_type(site.dtype(scale))?)];
    let mut zero = format!("{}.0f", unpack.to.int_range()?.0.unsigned_abs());
    if let Some(zeros) = zeros {
        params.push(Param::read(zeros?, "z", memory_type(site.dtype(zeros?))?));
        zero.push_str(" + (f32)z[block]");
    }
    params.push(Param::write(0, "y", to));
    let (blocks, mask) = (k.div_ceil(block), (1_u32 << bits) - 1);
    let body = format!(
        "const u64 first = at * {per_word};
const u64 block = first / {k} * {blocks} + first % {k} / {block};
const u32 word = x[at];
const f32 scale = to_f32(s[block]), zero = {zero};
Vec<{to}, {per_word}> line;
UNROLL for (int i = 0; i < {per_word}; i++)
    put(&line.at[i], ((f32)(word >> (i * {bits}) & {mask}u) - zero) * scale);
store_vec<{per_word}>(y + first, line);
"
    );
    let count = shape.iter().product::<usize>() / per_word;
    let launch = Kernel::new("unpack_blocks", params).for_each(count, "u64", &body);
    Some(Lowered::one(format!("unpack_blocks.{bits}bit"), launch))
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
