//! Functions of elements: the expression of an op, and the kernel of one op or of a body of them. A thread computes one
//! element, or a few neighbours that it loads and stores as one word.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use precast_ir::op::{Binary, BinaryFn, Clamp, CompareFn, Unary, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::DType;

use crate::element::{
    constant_literal, element, float_literal, int_literal, is_narrow, load, memory_type, round, value_type,
};
use crate::kernel::{Launch, Lowered};
use crate::nest::{Kernel, Nest, Param, broadcast_strides, index_type, signed};
use crate::site::Site;

/// Bytes that a thread loads or stores at once.
const VECTOR_BYTES: usize = 16;

/// The kernel of one op.
pub fn lower(site: &Site) -> Option<Lowered> {
    let nodes = std::slice::from_ref(site.node);
    lower_nodes(site, site.graph, nodes, &site.node.inputs, &site.node.outputs)
}

/// The kernel of nodes of `graph`, which read `inputs` (the operands of the site, in order) and give `outputs` (its
/// results, in order). `None` where a node is not elementwise or works on rare element types.
pub fn lower_nodes(
    site: &Site,
    graph: &Graph,
    nodes: &[Node],
    inputs: &[ValueId],
    outputs: &[ValueId],
) -> Option<Lowered> {
    let shape = site.out_shape(0);
    if (1..outputs.len()).any(|output| site.out_shape(output) != shape) {
        return None;
    }
    let mut operands = Vec::new();
    let mut names: BTreeMap<u32, String> = BTreeMap::new();
    for (input, value) in inputs.iter().enumerate() {
        if names.contains_key(&value.0) {
            continue;
        }
        match site.constant(input).filter(|tensor| tensor.len() == 1) {
            Some(tensor) => names.insert(value.0, constant_literal(tensor)?),
            None => {
                let strides = broadcast_strides(&site.shape(input), &site.strides(input), &shape);
                let at = operands.len();
                operands.push(Source { input, dtype: site.dtype(input), strides });
                names.insert(value.0, format!("a{at}"))
            }
        };
    }
    let expressions = write_expressions(graph, nodes, &mut names)?;
    let mut targets = Vec::new();
    for (output, value) in outputs.iter().enumerate() {
        let (dtype, strides) = (site.out_dtype(output), signed(&site.out_strides(output)));
        targets.push(Target { dtype, strides, value: names.get(&value.0)?.clone() });
    }
    let pointwise = Pointwise { entry: "pointwise", shape, sources: operands, targets, expressions };
    let (launch, width) = pointwise.launch()?;
    Some(Lowered::one(format!("pointwise.{width}.{}", functions(nodes)), launch))
}

/// Names of the functions of nodes, for people.
fn functions(nodes: &[Node]) -> String {
    const SHOWN: usize = 4;
    let mut functions: Vec<&str> = nodes.iter().take(SHOWN).map(|node| function(&node.op)).collect();
    if nodes.len() > SHOWN {
        functions.push("…");
    }
    functions.join("+")
}

/// An operand that is read element by element; its value is `a0` for the first one.
pub struct Source {
    /// Operand of the node.
    pub input: usize,
    /// Its element type.
    pub dtype: DType,
    /// Elements between neighbours of each axis of the result.
    pub strides: Vec<i64>,
}

/// A result that is written element by element.
pub struct Target {
    /// Element type.
    pub dtype: DType,
    /// Elements between neighbours of each axis.
    pub strides: Vec<i64>,
    /// Its value, of the names that expressions declare.
    pub value: String,
}

/// A kernel that computes each element of its results from one element of each operand.
pub struct Pointwise {
    /// Name in the text.
    pub entry: &'static str,
    /// Axes of the results.
    pub shape: Vec<usize>,
    /// What it reads.
    pub sources: Vec<Source>,
    /// What it writes, in order of the node's results.
    pub targets: Vec<Target>,
    /// Lines between loads and stores.
    pub expressions: String,
}

/// Lines that compute the values of the nodes, in order.
fn write_expressions(graph: &Graph, nodes: &[Node], names: &mut BTreeMap<u32, String>) -> Option<String> {
    let mut text = String::new();
    for (at, node) in nodes.iter().enumerate() {
        let mut operands = Vec::new();
        for input in &node.inputs {
            let name = match names.get(&input.0) {
                Some(name) => name.clone(),
                None => constant_literal(graph.constant(*input).filter(|tensor| tensor.len() == 1)?)?,
            };
            operands.push((graph.ty(*input).dtype, name));
        }
        let dtype = graph.ty(node.outputs[0]).dtype;
        let value = expression(&node.op, &operands, dtype)?;
        let value = if is_exact(&node.op) { value } else { round(dtype, &value) };
        let _ = writeln!(text, "const {} v{at} = {value};", value_type(dtype)?);
        names.insert(node.outputs[0].0, format!("v{at}"));
    }
    Some(text)
}

impl Pointwise {
    /// The launch, and how many elements a thread takes at once.
    pub fn launch(&self) -> Option<(Launch, usize)> {
        let Pointwise { shape, sources, targets, .. } = self;
        let strides: Vec<Vec<i64>> = sources
            .iter()
            .map(|source| source.strides.clone())
            .chain(targets.iter().map(|target| target.strides.clone()))
            .collect();
        let dtypes: Vec<DType> =
            sources.iter().map(|source| source.dtype).chain(targets.iter().map(|target| target.dtype)).collect();
        let order: Vec<usize> = targets[0].strides.iter().map(|&stride| stride as usize).collect();
        let mut nest = Nest::new(shape, &order, &strides);
        let index = index_type(&nest.reaches());
        let width = vector_width(&nest, &dtypes);
        let is_vector: Vec<bool> = split_by(&mut nest, width);

        let mut params = Vec::new();
        let mut body = nest.indices("i", "at", index);
        let mut loads = String::new();
        for (at, Source { input, dtype, .. }) in sources.iter().enumerate() {
            params.push(Param::read(*input, format!("x{at}"), memory_type(*dtype)?).by_rows());
            let offset = nest.offset("i", at, index);
            let ty = value_type(*dtype)?;
            if is_vector[at] && width > 1 {
                let _ = writeln!(body, "const auto p{at} = load_vec<{width}>(x{at} + ({offset}));");
                let _ = writeln!(loads, "const {ty} a{at} = {};", load(*dtype, &format!("p{at}.at[k]")));
            } else {
                let _ = writeln!(body, "const {ty} a{at} = {};", load(*dtype, &format!("x{at}[{offset}]")));
            }
        }
        let mut stores = String::new();
        let mut ends = String::new();
        for (output, Target { dtype, value, .. }) in targets.iter().enumerate() {
            let ty = memory_type(*dtype)?;
            params.push(Param::write(output, format!("y{output}"), ty).by_rows());
            let offset = nest.offset("i", sources.len() + output, index);
            let value = element(*dtype, value);
            if width > 1 {
                let _ = writeln!(body, "Vec<{ty}, {width}> q{output};");
                let _ = writeln!(stores, "q{output}.at[k] = {value};");
                let _ = writeln!(ends, "store_vec<{width}>(y{output} + ({offset}), q{output});");
            } else {
                let _ = writeln!(stores, "y{output}[{offset}] = {value};");
            }
        }
        if width > 1 {
            let inner = crate::nest::indent(&[&loads, &self.expressions, &stores].map(String::as_str).concat());
            let _ = write!(body, "UNROLL\nfor (int k = 0; k < {width}; k++) {{\n{inner}}}\n{ends}");
        } else {
            body.push_str(&self.expressions);
            body.push_str(&stores);
        }
        Some((Kernel::new(self.entry, params).for_each(nest.count(), index, &body), width))
    }
}

/// Elements that a thread takes at once: as many as fit a word of every type, divide the innermost axis, and keep every
/// word aligned.
pub fn vector_width(nest: &Nest, dtypes: &[DType]) -> usize {
    let size = dtypes.iter().map(|dtype| dtype.size_bytes()).max().unwrap_or(1);
    let Some((inner, outer)) = nest.axes.split_last() else { return 1 };
    // Results are stored as words: they have to be runs.
    let are_runs = inner.strides.iter().all(|&stride| stride == 0 || stride == 1);
    let fits = |width: usize| {
        let is_aligned = |operand: usize| {
            inner.strides[operand] == 0 || outer.iter().all(|axis| axis.strides[operand] % width as i64 == 0)
        };
        width * size <= VECTOR_BYTES && inner.extent % width == 0 && (0..inner.strides.len()).all(is_aligned)
    };
    if !are_runs {
        return 1;
    }
    [8, 4, 2].into_iter().find(|&width| fits(width)).unwrap_or(1)
}

/// Makes the innermost axis count words of `width` elements, and says which operands are read as such words.
pub fn split_by(nest: &mut Nest, width: usize) -> Vec<bool> {
    let Some(inner) = nest.axes.last_mut() else { return Vec::new() };
    inner.extent /= width;
    let is_vector = inner.strides.iter().map(|&stride| stride == 1).collect();
    inner.strides.iter_mut().for_each(|stride| *stride *= width as i64);
    is_vector
}

/// Whether a 16-bit result needs no rounding: it is one of the operands, or a number that such a type holds.
fn is_exact(op: &Op) -> bool {
    match op {
        Op::Unary(op) => matches!(
            op.func,
            UnaryFn::Abs
                | UnaryFn::Neg
                | UnaryFn::Sign
                | UnaryFn::Ceil
                | UnaryFn::Floor
                | UnaryFn::Round
                | UnaryFn::Relu
                | UnaryFn::Thresholded
        ),
        Op::Binary(op) => matches!(op.func, BinaryFn::Min | BinaryFn::Max),
        Op::Select(_) => true,
        // Casts round by themselves.
        Op::Cast(_) => true,
        _ => false,
    }
}

/// Name of the function that an op applies.
pub fn function(op: &Op) -> &'static str {
    match op {
        Op::Unary(op) => op.func.name(),
        Op::Binary(op) => op.func.name(),
        Op::Compare(op) => op.func.name(),
        other => other.name(),
    }
}

/// What an op makes of operands, given by type and name, before rounding to its 16-bit type.
pub fn expression(op: &Op, operands: &[(DType, String)], to: DType) -> Option<String> {
    let x = &operands.first()?.1;
    let dtype = operands[0].0;
    let can_compute = !operands.iter().any(|(dtype, _)| is_narrow(*dtype) || value_type(*dtype).is_none());
    match op {
        Op::Unary(op) if can_compute => unary(op, dtype, x),
        Op::Binary(op) if can_compute => binary(op, operands),
        Op::Compare(op) => {
            let symbol = match op.func {
                CompareFn::Eq => "==",
                CompareFn::Lt => "<",
                CompareFn::Le => "<=",
                CompareFn::Gt => ">",
                CompareFn::Ge => ">=",
            };
            Some(format!("({x} {symbol} {})", operands[1].1))
        }
        Op::Select(_) => Some(format!("({x} ? {} : {})", operands[1].1, operands[2].1)),
        Op::Clamp(op) if can_compute => clamp(op, dtype, x),
        Op::Cast(_) => cast(dtype, to, x),
        _ => None,
    }
}

fn unary(op: &Unary, dtype: DType, x: &str) -> Option<String> {
    if dtype.is_bool() {
        return (op.func == UnaryFn::Not).then(|| format!("(!{x})"));
    }
    if dtype.is_float() { float_function(op.func, dtype, x, op.alpha, op.beta) } else { unary_int(op, dtype, x) }
}

/// A function of one float value.
pub fn float_function(func: UnaryFn, dtype: DType, x: &str, alpha: f64, beta: f64) -> Option<String> {
    let (a, b) = (float_literal(dtype, alpha), float_literal(dtype, beta));
    let number = |x: f64| float_literal(dtype, x);
    Some(match func {
        UnaryFn::Abs => format!("of_fabs({x})"),
        UnaryFn::Neg => format!("(-{x})"),
        UnaryFn::Sign => format!("sign_float({x})"),
        UnaryFn::Recip => format!("({} / {x})", number(1.0)),
        UnaryFn::Sqrt => format!("of_sqrt({x})"),
        UnaryFn::Rsqrt => format!("({} / of_sqrt({x}))", number(1.0)),
        UnaryFn::Exp => format!("of_exp({x})"),
        UnaryFn::Expm1 => format!("of_expm1({x})"),
        UnaryFn::Log => format!("of_log({x})"),
        UnaryFn::Log1p => format!("of_log1p({x})"),
        UnaryFn::Sin => format!("of_sin({x})"),
        UnaryFn::Cos => format!("of_cos({x})"),
        UnaryFn::Tan => format!("of_tan({x})"),
        UnaryFn::Asin => format!("of_asin({x})"),
        UnaryFn::Acos => format!("of_acos({x})"),
        UnaryFn::Atan => format!("of_atan({x})"),
        UnaryFn::Sinh => format!("of_sinh({x})"),
        UnaryFn::Cosh => format!("of_cosh({x})"),
        UnaryFn::Tanh => format!("of_tanh({x})"),
        UnaryFn::Asinh => format!("of_asinh({x})"),
        UnaryFn::Acosh => format!("of_acosh({x})"),
        UnaryFn::Atanh => format!("of_atanh({x})"),
        UnaryFn::Erf => format!("of_erf({x})"),
        UnaryFn::Ceil => format!("of_ceil({x})"),
        UnaryFn::Floor => format!("of_floor({x})"),
        UnaryFn::Round => format!("of_rint({x})"),
        UnaryFn::IsNan => format!("({x} != {x})"),
        UnaryFn::IsInf => {
            let infinite = |sign: f64| number(sign * f64::INFINITY);
            let (above, below) = (alpha != 0.0, beta != 0.0);
            format!("(({x} == {} && {above}) || ({x} == {} && {below}))", infinite(1.0), infinite(-1.0))
        }
        UnaryFn::Relu => format!("relu_float({x})"),
        UnaryFn::Leaky => format!("leaky_float({x}, {a})"),
        UnaryFn::Elu => format!("elu_float({x}, {a})"),
        UnaryFn::Selu => format!("({b} * elu_float({x}, {a}))"),
        UnaryFn::Celu => format!("celu_float({x}, {a})"),
        UnaryFn::GeluErf => format!("gelu_erf_float({x})"),
        UnaryFn::GeluTanh => format!("gelu_tanh_float({x})"),
        UnaryFn::QuickGelu | UnaryFn::Silu => format!("swish_float({x}, {a})"),
        UnaryFn::Mish => format!("mish_float({x})"),
        UnaryFn::Sigmoid | UnaryFn::Logistic => format!("sigmoid_float({x})"),
        UnaryFn::HardSigmoid => format!("clamp_float(of_fma({a}, {x}, {b}), {}, {})", number(0.0), number(1.0)),
        UnaryFn::HardSwish => format!("hard_swish_float({x})"),
        UnaryFn::Softplus => format!("softplus_float({x})"),
        UnaryFn::Softsign => format!("({x} / ({} + of_fabs({x})))", number(1.0)),
        UnaryFn::Shrink => format!("shrink_float({x}, {a}, {b})"),
        UnaryFn::Thresholded => format!("({x} > {a} ? {x} : {})", number(0.0)),
        UnaryFn::Affine => format!("of_fma({a}, {x}, {b})"),
        UnaryFn::ScaledTanh => format!("({a} * of_tanh({b} * {x}))"),
        UnaryFn::Not | UnaryFn::BitNot => return None,
    })
}

fn unary_int(op: &Unary, dtype: DType, x: &str) -> Option<String> {
    let ty = value_type(dtype)?;
    Some(match op.func {
        UnaryFn::Abs => format!("abs_int({x})"),
        UnaryFn::Neg => format!("neg_int({x})"),
        UnaryFn::Sign => format!("sign_int({x})"),
        UnaryFn::BitNot => format!("({ty})~{x}"),
        UnaryFn::Ceil | UnaryFn::Floor | UnaryFn::Round => x.to_string(),
        UnaryFn::Relu => format!("max_int({x}, ({ty})0)"),
        // Beyond 53 bits the reference is exact and f64 is not.
        UnaryFn::Shrink if dtype.bits() <= 32 => {
            let number = |x: f64| float_literal(DType::F64, x);
            format!("({ty})(i64)shrink_float((f64){x}, {}, {})", number(op.alpha), number(op.beta))
        }
        _ => return None,
    })
}

fn binary(op: &Binary, operands: &[(DType, String)]) -> Option<String> {
    let [(dtype, a), (b_dtype, b)] = operands else { return None };
    if op.func == BinaryFn::Pow && dtype != b_dtype {
        return mixed_pow(*dtype, a, *b_dtype, b);
    }
    if dtype.is_bool() {
        return match op.func {
            BinaryFn::And => Some(format!("({a} && {b})")),
            BinaryFn::Or => Some(format!("({a} || {b})")),
            BinaryFn::Xor => Some(format!("({a} != {b})")),
            _ => None,
        };
    }
    if dtype.is_float() { binary_float(op.func, a, b) } else { binary_int(op.func, *dtype, a, b) }
}

fn mixed_pow(dtype: DType, a: &str, b_dtype: DType, b: &str) -> Option<String> {
    if dtype.is_float() {
        return Some(match (dtype, b_dtype) {
            (DType::F64, _) => format!("of_pow({a}, (f64){b})"),
            (_, DType::F64) => format!("(f32)of_pow((f64){a}, {b})"),
            _ => format!("of_pow({a}, (f32){b})"),
        });
    }
    Some(if b_dtype.is_float() { format!("pow_int_by_float({a}, {b})") } else { format!("pow_int({a}, {b})") })
}

fn binary_float(func: BinaryFn, a: &str, b: &str) -> Option<String> {
    Some(match func {
        BinaryFn::Add => format!("({a} + {b})"),
        BinaryFn::Sub => format!("({a} - {b})"),
        BinaryFn::Mul => format!("({a} * {b})"),
        BinaryFn::Div => format!("({a} / {b})"),
        BinaryFn::Pow => format!("of_pow({a}, {b})"),
        BinaryFn::Mod => format!("mod_float({a}, {b})"),
        BinaryFn::Fmod => format!("of_fmod({a}, {b})"),
        BinaryFn::Min => format!("min_float({a}, {b})"),
        BinaryFn::Max => format!("max_float({a}, {b})"),
        BinaryFn::Prelu => format!("({a} < 0 ? {a} * {b} : {a})"),
        BinaryFn::And
        | BinaryFn::Or
        | BinaryFn::Xor
        | BinaryFn::BitAnd
        | BinaryFn::BitOr
        | BinaryFn::BitXor
        | BinaryFn::Shl
        | BinaryFn::Shr => return None,
    })
}

fn binary_int(func: BinaryFn, dtype: DType, a: &str, b: &str) -> Option<String> {
    let ty = value_type(dtype)?;
    Some(match func {
        BinaryFn::Add => format!("add_int({a}, {b})"),
        BinaryFn::Sub => format!("sub_int({a}, {b})"),
        BinaryFn::Mul => format!("mul_int({a}, {b})"),
        BinaryFn::Div => format!("div_int({a}, {b})"),
        BinaryFn::Pow => format!("pow_int({a}, {b})"),
        BinaryFn::Mod => format!("mod_int({a}, {b})"),
        BinaryFn::Fmod => format!("rem_int({a}, {b})"),
        BinaryFn::Min => format!("min_int({a}, {b})"),
        BinaryFn::Max => format!("max_int({a}, {b})"),
        BinaryFn::BitAnd => format!("({ty})({a} & {b})"),
        BinaryFn::BitOr => format!("({ty})({a} | {b})"),
        BinaryFn::BitXor => format!("({ty})({a} ^ {b})"),
        BinaryFn::Shl => format!("shl_int({a}, {b})"),
        BinaryFn::Shr => format!("shr_int({a}, {b})"),
        BinaryFn::Prelu => format!("({a} < 0 ? mul_int({a}, {b}) : {a})"),
        BinaryFn::And | BinaryFn::Or | BinaryFn::Xor => return None,
    })
}

fn clamp(op: &Clamp, dtype: DType, x: &str) -> Option<String> {
    if dtype.is_float() {
        let number = |x: f64| float_literal(dtype, x);
        return Some(format!("clamp_float({x}, {}, {})", number(op.lo), number(op.hi)));
    }
    let (least, most) = dtype.int_range()?;
    let within = |limit: f64| int_literal(dtype, (limit as i128).clamp(least, most));
    Some(format!("min_int(max_int({x}, {}), {})", within(op.lo.ceil()), within(op.hi.floor())))
}

/// An element converted to another type, rounded to it.
pub fn cast(from: DType, to: DType, x: &str) -> Option<String> {
    let (from_ty, ty) = (value_type(from)?, value_type(to)?);
    if from == to {
        return Some(x.to_string());
    }
    if to.is_bool() {
        return Some(format!("({x} != 0)"));
    }
    if to.is_float() {
        // 16-bit floats are rounded once, from what rounds as the operand itself does.
        let is_wide = from == DType::F64 || (to == DType::BF16 && from.is_int() && from.bits() > 16);
        return Some(match to {
            DType::F16 | DType::BF16 if is_wide => round(to, &format!("to_odd_f32({x})")),
            DType::F16 | DType::BF16 => round(to, &format!("(f32){x}")),
            _ if from_ty == ty => x.to_string(),
            _ => format!("({ty}){x}"),
        });
    }
    // Types of less than a byte keep the lowest bits; floats stop at the ends of others.
    let whole = if from.is_float() && is_narrow(to) { format!("to_low_bits({x})") } else { x.to_string() };
    Some(match to {
        DType::U4 => format!("(u8)({whole} & 15)"),
        DType::U2 => format!("(u8)({whole} & 3)"),
        DType::I4 => format!("(i8)((i8)((u8){whole} << 4) >> 4)"),
        DType::I2 => format!("(i8)((i8)((u8){whole} << 6) >> 6)"),
        _ if from.is_float() => format!("to_int<{ty}>({x})"),
        _ => format!("({ty}){x}"),
    })
}
