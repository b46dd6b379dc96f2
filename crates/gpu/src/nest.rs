//! Loops of kernels: the elements of a result in the order they lie in memory, one thread each, and where the operands of
//! an element are.

use std::fmt::Write as _;

use crate::kernel::{Launch, Operand};

/// Threads of a block.
pub const BLOCK: u32 = 256;
/// Blocks of a launch: beyond it threads loop.
pub const BLOCKS_MAX: usize = 1 << 20;
/// Offsets below this are computed in 32 bits: adding the step of a launch to one does not overflow.
const NARROW_MAX: usize = 1 << 30;

/// An axis of a loop nest.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Steps along it.
    pub extent: usize,
    /// Elements between neighbours, by operand.
    pub strides: Vec<i64>,
}

/// Axes from the outermost to the innermost. The extent of the first one is not in the text.
#[derive(Clone, Debug, PartialEq)]
pub struct Nest {
    /// The axes.
    pub axes: Vec<Axis>,
}

/// Row-major or other positions of axes by stride, outermost first. Axes of extent 1 keep their place.
pub fn memory_order(strides: &[usize]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..strides.len()).collect();
    order.sort_by_key(|&axis| std::cmp::Reverse(strides[axis]));
    order
}

impl Nest {
    /// The elements of `shape` in the order of `order`'s strides; neighbouring axes that are one run in every operand are
    /// joined, axes of extent 1 dropped.
    pub fn new(shape: &[usize], order: &[usize], operands: &[Vec<i64>]) -> Nest {
        let mut axes: Vec<Axis> = Vec::new();
        for axis in memory_order(order) {
            let (extent, strides) = (shape[axis], operands.iter().map(|operand| operand[axis]).collect::<Vec<i64>>());
            if extent == 1 {
                continue;
            }
            match axes.last_mut() {
                Some(last) if last.strides.iter().zip(&strides).all(|(a, b)| *a == b * extent as i64) => {
                    last.extent *= extent;
                    last.strides = strides;
                }
                _ => axes.push(Axis { extent, strides }),
            }
        }
        if axes.is_empty() {
            axes.push(Axis { extent: 1, strides: vec![0; operands.len()] });
        }
        Nest { axes }
    }

    /// Elements.
    pub fn count(&self) -> usize {
        self.axes.iter().map(|axis| axis.extent).product()
    }

    /// By operand: how far its last element lies from the first, and at least the number of elements.
    pub fn reaches(&self) -> Vec<usize> {
        let operands = self.axes.first().map_or(0, |axis| axis.strides.len());
        let reach = |operand: usize| -> usize {
            let steps = self.axes.iter().map(|axis| axis.extent.saturating_sub(1) as i64 * axis.strides[operand].abs());
            steps.sum::<i64>() as usize
        };
        (0..operands).map(|operand| reach(operand).max(self.count())).collect()
    }

    /// Lines that declare the index of every axis, `{prefix}0` outermost, from the number `at` of an element.
    pub fn indices(&self, prefix: &str, at: &str, index: &str) -> String {
        let mut text = String::new();
        let last = self.axes.len() - 1;
        if last == 0 {
            let _ = writeln!(text, "const {index} {prefix}0 = {at};");
            return text;
        }
        let _ = writeln!(text, "{index} {prefix}_rest = {at};");
        for (axis, Axis { extent, .. }) in self.axes.iter().enumerate().skip(1).rev() {
            let _ = writeln!(text, "const {index} {prefix}{axis} = {prefix}_rest % {extent}u;");
            let _ = writeln!(text, "{prefix}_rest /= {extent}u;");
        }
        let _ = writeln!(text, "const {index} {prefix}0 = {prefix}_rest;");
        text
    }

    /// The offset of an operand's element.
    pub fn offset(&self, prefix: &str, operand: usize, index: &str) -> String {
        let terms = self
            .axes
            .iter()
            .enumerate()
            .map(|(axis, Axis { strides, .. })| (format!("{prefix}{axis}"), strides[operand]));
        offset_sum(terms, index)
    }
}

/// Lines that declare the index of every axis of a dense result, `i0` for axis 0, from the number `at` of an element in
/// memory. The extent of axis 0, which lies outermost, is not in the text.
pub fn axis_indices(shape: &[usize], strides: &[usize], index: &str) -> String {
    let mut text = format!("{index} rest = at;\n");
    for &axis in memory_order(strides).iter().rev().filter(|&&axis| axis != 0) {
        let extent = shape[axis];
        let _ = match extent {
            1 => writeln!(text, "const {index} i{axis} = 0;"),
            _ => writeln!(text, "const {index} i{axis} = rest % {extent}u;\nrest /= {extent}u;"),
        };
    }
    if !shape.is_empty() {
        let _ = writeln!(text, "const {index} i0 = rest;");
    }
    text
}

/// `Σ index·stride` as text; strides may be negative, which wraps in the index type and comes out right.
pub fn offset_sum(terms: impl IntoIterator<Item = (String, i64)>, index: &str) -> String {
    let terms: Vec<String> = terms
        .into_iter()
        .filter(|(_, stride)| *stride != 0)
        .map(|(name, stride)| match stride {
            1 => name,
            _ => format!("{name} * ({index}){stride}"),
        })
        .collect();
    if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
}

/// The type that holds offsets up to the largest of `counts`.
pub fn index_type(counts: &[usize]) -> &'static str {
    if counts.iter().all(|&count| count < NARROW_MAX) { "u32" } else { "u64" }
}

/// A parameter of a kernel that is a buffer.
#[derive(Clone, Debug)]
pub struct Param {
    /// Name of the pointer in the text.
    pub name: String,
    /// Type of its elements.
    pub ty: &'static str,
    /// The buffer.
    pub operand: Operand,
    /// Whether the text has no pointer of this name and chooses the argument by its position (`arg0.choose()`).
    pub is_chosen: bool,
    /// Whether the text takes a caller's buffer with fewer rows: it uses the name only in `name[…]` and `name + …`.
    pub takes_rows: bool,
}

impl Param {
    /// An operand of the node.
    pub fn read(input: usize, name: impl Into<String>, ty: &'static str) -> Param {
        Param { name: name.into(), ty, operand: Operand::Read(input as u32), is_chosen: false, takes_rows: false }
    }

    /// An operand of the node that threads choose among many.
    pub fn chosen(input: usize, ty: &'static str) -> Param {
        Param { is_chosen: true, ..Param::read(input, String::new(), ty) }
    }

    /// A result of the node.
    pub fn write(output: usize, name: impl Into<String>, ty: &'static str) -> Param {
        Param { name: name.into(), ty, operand: Operand::Write(output as u32), is_chosen: false, takes_rows: false }
    }

    /// A constant made while lowering.
    pub fn packed(at: usize, name: impl Into<String>, ty: &'static str) -> Param {
        Param { name: name.into(), ty, operand: Operand::Packed(at as u32), is_chosen: false, takes_rows: false }
    }

    /// The same, where the text takes a caller's buffer with fewer rows than the Program's.
    pub fn by_rows(self) -> Param {
        Param { takes_rows: true, ..self }
    }

    /// Bytes of an element.
    fn element_bytes(&self) -> u64 {
        let bits = self.ty.trim_start_matches(|letter: char| !letter.is_ascii_digit());
        bits.parse::<u64>().map_or(1, |bits| bits / 8)
    }

    /// Memory between launches.
    pub fn scratch(at: usize, name: impl Into<String>, ty: &'static str) -> Param {
        Param { name: name.into(), ty, operand: Operand::Scratch(at as u32), is_chosen: false, takes_rows: false }
    }
}

/// A kernel before it becomes a launch.
#[derive(Clone, Debug)]
pub struct Kernel<'a> {
    /// Name in the text.
    pub entry: &'a str,
    /// Buffers.
    pub params: Vec<Param>,
    /// Names and values of scalar parameters.
    pub scalars: Vec<(&'a str, i64)>,
    /// Declarations before the kernel.
    pub declarations: String,
}

impl<'a> Kernel<'a> {
    /// A kernel with these buffers.
    pub fn new(entry: &'a str, params: Vec<Param>) -> Kernel<'a> {
        Kernel { entry, params, scalars: Vec::new(), declarations: String::new() }
    }

    /// Adds a scalar parameter.
    pub fn scalar(mut self, name: &'a str, value: usize) -> Kernel<'a> {
        self.scalars.push((name, value as i64));
        self
    }

    /// Adds declarations before the kernel.
    pub fn declare(mut self, text: impl AsRef<str>) -> Kernel<'a> {
        self.declarations.push_str(text.as_ref());
        self
    }

    /// One thread for each of `count` elements; `body` sees its number as `at`, of type `index`.
    pub fn for_each(self, count: usize, index: &str, body: &str) -> Launch {
        let body = format!(
            "for ({index} at = ({index})blockIdx.x * {BLOCK}u + threadIdx.x; at < ({index})total; at += ({index})gridDim.x * {BLOCK}u) {{\n{}}}\n",
            indent(body)
        );
        let kernel = self.scalar("total", count);
        let blocks = count.div_ceil(BLOCK as usize).clamp(1, BLOCKS_MAX);
        kernel.launch("KERNEL_FLAT", blocks, BLOCK, &body)
    }

    /// Blocks of `threads` threads whose threads work together.
    pub fn blocks(self, blocks: usize, threads: u32, body: &str) -> Launch {
        self.launch("KERNEL", blocks.clamp(1, BLOCKS_MAX), threads, body)
    }

    fn launch(self, kind: &str, blocks: usize, threads: u32, body: &str) -> Launch {
        let is_read = |param: &Param| matches!(param.operand, Operand::Read(_) | Operand::Packed(_));
        let mut parameters: Vec<String> = self
            .params
            .iter()
            .enumerate()
            .map(|(at, param)| format!("Arg<{}{}, {at}> arg{at}", if is_read(param) { "const " } else { "" }, param.ty))
            .collect();
        parameters.extend(self.scalars.iter().map(|(name, _)| format!("i64 {name}")));
        let mut text = self.declarations.clone();
        let _ = writeln!(text, "{kind}({}, {threads}, {}) {{", self.entry, parameters.join(", "));
        for (at, Param { name, ty, operand, takes_rows, .. }) in
            self.params.iter().enumerate().filter(|(_, param)| !param.is_chosen)
        {
            if *takes_rows {
                let constness = if is_read(&self.params[at]) { "const " } else { "" };
                let _ = writeln!(text, "    const Arg<{constness}{ty}, {at}>::OwnRows {name} = arg{at}.rows();");
                continue;
            }
            // Scratch memory is written and read by one kernel: no promise that it is not aliased.
            let _ = match operand {
                Operand::Read(_) | Operand::Packed(_) => {
                    writeln!(text, "    const {ty} *__restrict__ {name} = arg{at}.get();")
                }
                Operand::Write(_) => writeln!(text, "    {ty} *__restrict__ {name} = arg{at}.get();"),
                Operand::Scratch(_) => writeln!(text, "    {ty} *{name} = arg{at}.get();"),
            };
        }
        text.push_str("    start_next();\n    wait_for_last();\n");
        text.push_str(&indent(body));
        text.push_str("}\n");
        Launch {
            entry: self.entry.to_string(),
            text,
            grid: [blocks as u32, 1, 1],
            block: [threads, 1, 1],
            shared_bytes: 0,
            operands: self.params.iter().map(|param| param.operand).collect(),
            scalars: self.scalars.iter().map(|(_, value)| *value).collect(),
            row_bytes: self
                .params
                .iter()
                .map(|param| if param.takes_rows { param.element_bytes() } else { 0 })
                .collect(),
        }
    }
}

/// The lines of a text, four spaces further in.
pub fn indent(text: &str) -> String {
    text.lines().map(|line| if line.is_empty() { "\n".to_string() } else { format!("    {line}\n") }).collect()
}

/// Strides as the nest takes them.
pub fn signed(strides: &[usize]) -> Vec<i64> {
    strides.iter().map(|&stride| stride as i64).collect()
}

/// Strides that read an operand as if it had been broadcast to `shape`.
pub fn broadcast_strides(own_shape: &[usize], own_strides: &[usize], shape: &[usize]) -> Vec<i64> {
    let missing = shape.len() - own_shape.len();
    (0..shape.len())
        .map(|axis| match axis.checked_sub(missing) {
            Some(own) if own_shape[own] == shape[axis] => own_strides[own] as i64,
            _ => 0,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_are_one_run_are_joined() {
        let dense = vec![12, 4, 1];
        let nest = Nest::new(&[2, 3, 4], &[12, 4, 1], &[dense.clone(), dense]);
        assert_eq!(nest.axes, [Axis { extent: 24, strides: vec![1, 1] }]);
        let nest = Nest::new(&[2, 3, 4], &[12, 4, 1], &[vec![0, 4, 1]]);
        assert_eq!(nest.axes, [Axis { extent: 2, strides: vec![0] }, Axis { extent: 12, strides: vec![1] }]);
    }

    #[test]
    fn a_missing_axis_is_broadcast() {
        assert_eq!(broadcast_strides(&[3, 1], &[1, 1], &[2, 3, 4]), [0, 1, 0]);
    }
}
