//! Normalisations. A team of threads holds a row in registers, or reads it again in every pass where it is too long.
//! Statistics are f32, or f64 for f64.

use std::fmt::Write as _;

use precast_ir::op::{GroupNorm, LayerNorm, Lrn, RmsNorm, Softmax};
use precast_tensor::DType;

use crate::element::{element, float_literal, load, memory_type, value_type};
use crate::kernel::{Launch, Lowered};
use crate::nest::{BLOCK, Kernel, Param, axis_indices, broadcast_strides, indent, index_type, offset_sum, signed};
use crate::ops::elementwise::split_by;
use crate::site::Site;
use crate::team::{Rows, Team};

/// Elements that a lane holds in registers.
const HELD_MAX: usize = 32;
/// Threads of a block whose rows do not fit registers.
const BLOCK_LONG: usize = 1024;

/// Softmax over an axis, or its logarithm.
pub fn lower_softmax(site: &Site, op: &Softmax) -> Option<Lowered> {
    let kernel = RowKernel::new(site, &site.shape(0), &[op.axis], &[site_strides(site, 0), out_strides(site)], 2)?;
    let lowest = float_literal(site.dtype(0), f64::NEG_INFINITY);
    let ty = kernel.ty;
    let mut body = kernel.begin();
    // NaN is left aside here and reaches every element through the sum.
    let _ = write!(body, "{ty} largest = {lowest};\n{}", kernel.pass("largest = GreaterNumber()(largest, v);"));
    let _ = writeln!(body, "largest = {};", kernel.team.combine("largest", "GreaterNumber"));
    let (shift, value) = match (op.log, kernel.chunks.is_some()) {
        (true, _) => ("total += of_exp(v - largest);", "v - largest - tail"),
        (false, true) => ("v = of_exp(v - largest);\ntotal += v;", "v * tail"),
        (false, false) => ("total += of_exp(v - largest);", "of_exp(v - largest) * tail"),
    };
    let tail = if op.log { "of_log(total)".to_string() } else { format!("({ty})1 / total") };
    let _ = write!(body, "{ty} total = 0;\n{}", kernel.pass(shift));
    let _ = writeln!(body, "total = {};\nconst {ty} tail = {tail};", kernel.team.combine("total", "Add"));
    body.push_str(&kernel.store(value));
    let name = if op.log { "log_softmax" } else { "softmax" };
    Some(Lowered::one(name, kernel.launch(name, &body)))
}

/// Normalises the axes from `axis` on by mean and variance.
pub fn lower_layer_norm(site: &Site, op: &LayerNorm) -> Option<Lowered> {
    let shape = site.shape(0);
    let axes: Vec<usize> = (op.axis..shape.len()).collect();
    let mut strides = vec![site_strides(site, 0), out_strides(site)];
    for input in 1..site.node.inputs.len() {
        strides.push(broadcast_strides(&site.shape(input), &site.strides(input), &shape));
    }
    let kernel = RowKernel::new(site, &shape, &axes, &strides, strides.len())?;
    Some(Lowered::one("layer_norm", kernel.launch("layer_norm", &kernel.by_variance(op.epsilon))))
}

/// Normalises the axes from `axis` on by their mean square.
pub fn lower_rms_norm(site: &Site, op: &RmsNorm) -> Option<Lowered> {
    let shape = site.shape(0);
    let axes: Vec<usize> = (op.axis..shape.len()).collect();
    let scale = broadcast_strides(&site.shape(1), &site.strides(1), &shape);
    let strides = [site_strides(site, 0), out_strides(site), scale];
    let kernel = RowKernel::new(site, &shape, &axes, &strides, 3)?;
    let mut body = kernel.begin();
    body.push_str(&kernel.root("v * v", op.epsilon));
    body.push_str(&kernel.store("v * inverse * scale"));
    Some(Lowered::one("rms_norm", kernel.launch("rms_norm", &body)))
}

/// Normalises groups of channels by mean and variance.
pub fn lower_group_norm(site: &Site, op: &GroupNorm) -> Option<Lowered> {
    let shape = site.shape(0);
    let size = shape[1] / op.groups;
    // The channel axis as two: groups, and channels of a group.
    let split = |strides: &[i64]| [&[strides[0], strides[1] * size as i64, strides[1]], &strides[2..]].concat();
    let grouped: Vec<usize> = [&[shape[0], op.groups, size], &shape[2..]].concat();
    let axes: Vec<usize> = (2..grouped.len()).collect();
    let mut channel = vec![0; shape.len()];
    channel[1] = 1;
    let strides = [split(&site_strides(site, 0)), split(&out_strides(site)), split(&channel), split(&channel)];
    let kernel = RowKernel::new(site, &grouped, &axes, &strides, 4)?;
    Some(Lowered::one("group_norm", kernel.launch("group_norm", &kernel.by_variance(op.epsilon))))
}

/// Divides by a power of the sum of squares of neighbouring channels.
pub fn lower_lrn(site: &Site, op: &Lrn) -> Option<Lowered> {
    let dtype = site.dtype(0);
    let ty = value_type(dtype)?;
    let (shape, strides, own) = (site.out_shape(0), site.out_strides(0), site.strides(0));
    let index = index_type(&[shape.iter().product()]);
    let (before, after) = ((op.size - 1) / 2, op.size / 2);
    let channels = shape[1];
    let mut body = axis_indices(&shape, &strides, index);
    let others = (0..shape.len()).filter(|&axis| axis != 1).map(|axis| (format!("i{axis}"), own[axis] as i64));
    let _ = writeln!(body, "const {index} from = {};", offset_sum(others, index));
    let at = |channel: &str| load(dtype, &format!("x[from + {channel} * ({index}){}]", own[1]));
    let number = |x: f64| float_literal(dtype, x);
    let _ = write!(
        body,
        "const {index} first = i1 > {before}u ? i1 - {before}u : 0;
const {index} end = i1 + {after}u < {channels}u ? i1 + {after}u + 1 : {channels}u;
{ty} squares = 0;
for ({index} channel = first; channel < end; channel++) {{
    const {ty} v = {};
    squares += v * v;
}}
const {ty} divisor = of_pow({} + {} * squares, {});
y[at] = {};
",
        at("channel"),
        number(op.bias),
        number(op.alpha / op.size as f64),
        number(op.beta),
        element(dtype, &format!("{} / divisor", at("i1"))),
    );
    let params = vec![Param::read(0, "x", memory_type(dtype)?), Param::write(0, "y", memory_type(dtype)?)];
    Some(Lowered::one("lrn", Kernel::new("lrn", params).for_each(shape.iter().product(), index, &body)))
}

fn site_strides(site: &Site, input: usize) -> Vec<i64> {
    signed(&site.strides(input))
}

fn out_strides(site: &Site) -> Vec<i64> {
    signed(&site.out_strides(0))
}

/// A kernel in which teams of threads make several passes over rows of x and then store rows of y. Operands are x, y,
/// then scale and bias where there are any.
struct RowKernel {
    rows: Rows,
    dtype: DType,
    ty: &'static str,
    index: &'static str,
    team: Team,
    /// Elements of a row.
    length: usize,
    /// Elements of a word, and words of a row.
    width: usize,
    words: usize,
    /// Which operands are read or written as words.
    is_vector: Vec<bool>,
    /// Words that a lane holds in registers; none where a row is read again in every pass.
    chunks: Option<usize>,
}

impl RowKernel {
    fn new(site: &Site, shape: &[usize], axes: &[usize], strides: &[Vec<i64>], count: usize) -> Option<RowKernel> {
        let dtype = site.dtype(0);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64) {
            return None;
        }
        let order: Vec<usize> = strides[1].iter().map(|&stride| stride as usize).collect();
        let mut rows = Rows::new(shape, axes, &order, strides);
        let length: usize = axes.iter().map(|&axis| shape[axis]).product();
        let width = rows.width(dtype, &[0, 1]);
        let is_vector = split_by(&mut rows.inner, width);
        debug_assert_eq!(is_vector.len(), count);
        let words = length / width;
        let mut team = Team::new(words, rows.is_along, BLOCK as usize);
        let mut chunks = Some(words.div_ceil(team.lanes)).filter(|chunks| chunks * width <= HELD_MAX);
        if chunks.is_none() && rows.is_along {
            team = Team::new(words, true, BLOCK_LONG);
            chunks = Some(words.div_ceil(team.lanes)).filter(|chunks| chunks * width <= HELD_MAX / 2);
        }
        let index = index_type(&[shape.iter().product()]);
        Some(RowKernel { rows, dtype, ty: value_type(dtype)?, index, team, length, width, words, is_vector, chunks })
    }

    /// Where the row lies, and its elements where they are held.
    fn begin(&self) -> String {
        let (index, ty) = (self.index, self.ty);
        let mut text = self.rows.outer.indices("i", "row", index);
        for (operand, name) in ["x", "y", "scale", "bias"].iter().enumerate().take(self.is_vector.len()) {
            let _ = writeln!(text, "const {index} {name}_row = {};", self.rows.outer.offset("i", operand, index));
        }
        if let Some(chunks) = self.chunks {
            let _ = writeln!(text, "{ty} held[{}];", chunks * self.width);
            let mut inner = self.read(0, "x");
            let _ = write!(
                inner,
                "UNROLL\nfor (int k = 0; k < {}; k++) held[chunk * {} + k] = {};\n",
                self.width,
                self.width,
                self.read_element(0, "x")
            );
            text.push_str(&self.for_each_chunk(chunks, &inner));
        }
        text
    }

    fn for_each_chunk(&self, chunks: usize, body: &str) -> String {
        let lanes = self.team.lanes;
        format!(
            "UNROLL\nfor (u32 chunk = 0; chunk < {chunks}u; chunk++) {{\n    const u32 word = chunk * {lanes}u + lane;\n    if (!is_row || word >= {}u) continue;\n{}}}\n",
            self.words,
            indent(body)
        )
    }

    /// The word of an operand, where it is read as a word.
    fn read(&self, operand: usize, name: &str) -> String {
        let offset = self.rows.inner.offset("j", operand, self.index);
        let mut text = if operand == 0 { self.rows.inner.indices("j", "word", self.index) } else { String::new() };
        if self.is_vector[operand] && self.width > 1 {
            let _ =
                writeln!(text, "const auto {name}_word = load_vec<{}>({name} + ({name}_row + {offset}));", self.width);
        } else {
            let _ = writeln!(
                text,
                "const {} {name}_word = {name}[{name}_row + {offset}];",
                memory_type(self.dtype).unwrap_or("f32")
            );
        }
        text
    }

    /// Element k of what `read` has read.
    fn read_element(&self, operand: usize, name: &str) -> String {
        let is_word = self.is_vector[operand] && self.width > 1;
        load(self.dtype, &if is_word { format!("{name}_word.at[k]") } else { format!("{name}_word") })
    }

    /// `action` on every element `v` of the row; where the row is held it may change `v`.
    fn pass(&self, action: &str) -> String {
        let (ty, index, width) = (self.ty, self.index, self.width);
        match self.chunks {
            Some(chunks) => self.for_each_chunk(
                chunks,
                &format!(
                    "UNROLL\nfor (int k = 0; k < {width}; k++) {{\n    {ty} &v = held[chunk * {width} + k];\n{}}}\n",
                    indent(action)
                ),
            ),
            None => format!(
                "if (is_row)\n    for ({index} word = lane; word < {}u; word += {}u) {{\n{}    }}\n",
                self.words,
                self.team.lanes,
                indent(&indent(&format!(
                    "{}UNROLL\nfor (int k = 0; k < {width}; k++) {{\n    {ty} v = {};\n{}}}\n",
                    self.read(0, "x"),
                    self.read_element(0, "x"),
                    indent(action)
                )))
            ),
        }
    }

    /// Stores `value`, of `v` and, where there are any, `scale` and `bias`.
    fn store(&self, value: &str) -> String {
        let (ty, index, width) = (self.ty, self.index, self.width);
        let others: Vec<(usize, &str)> =
            [(2, "scale"), (3, "bias")].into_iter().filter(|(at, _)| *at < self.is_vector.len()).collect();
        let mut text = match self.chunks {
            Some(_) => self.rows.inner.indices("j", "word", index),
            None => self.read(0, "x"),
        };
        for (operand, name) in &others {
            text.push_str(&self.read_named(*operand, name));
        }
        let out = memory_type(self.dtype).unwrap_or("f32");
        let _ = writeln!(text, "Vec<{out}, {width}> stored;\nUNROLL\nfor (int k = 0; k < {width}; k++) {{");
        let v = match self.chunks {
            Some(_) => format!("held[chunk * {width} + k]"),
            None => self.read_element(0, "x"),
        };
        let _ = writeln!(text, "    const {ty} v = {v};");
        for (operand, name) in &others {
            let _ = writeln!(text, "    const {ty} {name} = {};", self.read_element(*operand, &format!("{name}_of")));
        }
        let _ = writeln!(text, "    stored.at[k] = {};\n}}", element(self.dtype, value));
        let to = format!("y_row + {}", self.rows.inner.offset("j", 1, index));
        let _ = match width {
            1 => writeln!(text, "y[{to}] = stored.at[0];"),
            _ => writeln!(text, "store_vec<{width}>(y + ({to}), stored);"),
        };
        match self.chunks {
            Some(chunks) => self.for_each_chunk(chunks, &text),
            None => format!(
                "if (is_row)\n    for ({index} word = lane; word < {}u; word += {}u) {{\n{}    }}\n",
                self.words,
                self.team.lanes,
                indent(&indent(&text))
            ),
        }
    }

    /// `read` under a name that the element's own name does not hide.
    fn read_named(&self, operand: usize, name: &str) -> String {
        self.read(operand, name).replace(&format!("{name}_word"), &format!("{name}_of_word"))
    }

    /// Lines that declare `inverse`: 1 over the root of the mean of `term`, with epsilon under the root.
    fn root(&self, term: &str, epsilon: f64) -> String {
        let ty = self.ty;
        let number = |x: f64| float_literal(self.dtype, x);
        format!(
            "{ty} squares = 0;\n{}squares = {};\nconst {ty} inverse = ({ty})1 / of_sqrt(squares / {} + {});\n",
            self.pass(&format!("squares += {term};")),
            self.team.combine("squares", "Add"),
            number(self.length as f64),
            number(epsilon),
        )
    }

    /// The whole row by mean and variance, then scale and bias.
    fn by_variance(&self, epsilon: f64) -> String {
        let ty = self.ty;
        let mut body = self.begin();
        let _ = write!(body, "{ty} total = 0;\n{}", self.pass("total += v;"));
        let _ = writeln!(
            body,
            "total = {};\nconst {ty} mean = total / {};",
            self.team.combine("total", "Add"),
            float_literal(self.dtype, self.length as f64)
        );
        body.push_str(&self.root("(v - mean) * (v - mean)", epsilon));
        let has_bias = self.is_vector.len() > 3;
        body.push_str(&self.store(if has_bias {
            "(v - mean) * inverse * scale + bias"
        } else {
            "(v - mean) * inverse * scale"
        }));
        body
    }

    fn launch(&self, entry: &str, body: &str) -> Launch {
        let ty = memory_type(self.dtype).unwrap_or("f32");
        let mut params = vec![Param::read(0, "x", ty).by_rows(), Param::write(0, "y", ty).by_rows()];
        for (input, name) in [(1, "scale"), (2, "bias")].into_iter().take(self.is_vector.len() - 2) {
            params.push(Param::read(input, name, ty));
        }
        let text = format!(
            "SHARED({}, shared, {});\n{}",
            self.ty,
            self.team.threads,
            self.team.for_each_row(self.index, body)
        );
        let rows = self.rows.outer.count();
        let kernel = Kernel::new(entry, params).scalar("rows", rows);
        kernel.blocks(rows.div_ceil(self.team.columns()), self.team.threads as u32, &text)
    }
}
