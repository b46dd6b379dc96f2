//! Recurrent layers: a block runs one row of the batch through time, in one direction. Each warp takes rows of the weights
//! in turn; states stay in f32 (f64 for f64) until they are stored.

use std::fmt::Write as _;

use precast_ir::op::{Direction, Recurrent, RecurrentFn};
use precast_tensor::DType;

use crate::element::{element, float_literal, load, memory_type};
use crate::kernel::Lowered;
use crate::nest::{BLOCK, Kernel, Param, indent, offset_sum};
use crate::ops::elementwise::float_function;
use crate::site::Site;

/// The kernel of a node.
pub fn lower_recurrent(site: &Site, op: &Recurrent) -> Option<Lowered> {
    if op.rounds_state {
        return None;
    }
    let layer = Layer::new(site, op)?;
    let mut body = layer.begin();
    let mut step = layer.products();
    step.push_str(&match op.func {
        RecurrentFn::Rnn => layer.rnn(),
        RecurrentFn::Gru => layer.gru(),
        RecurrentFn::Lstm => layer.lstm(),
    });
    step.push_str(&layer.store_step());
    let _ = write!(
        body,
        "for (i64 step = 0; step < length; step++) {{\n    const i64 time = {};\n{}}}\n{}",
        layer.time(),
        indent(&step),
        layer.end()
    );
    let text = format!(
        "const u32 lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;\nfor (u64 job = blockIdx.x; job < (u64)jobs; job += gridDim.x) {{\n{}}}\n",
        indent(&body)
    );
    let jobs = layer.directions * layer.batch;
    let element_bytes = if layer.ty == "f64" { 8 } else { 4 };
    let scratch = (jobs * layer.state_len() * element_bytes) as u64;
    let kernel = Kernel::new("recurrent", layer.params()?)
        .scalar("jobs", jobs)
        .scalar("steps", site.shape(0)[0])
        .declare(layer.activations()?);
    let launch = kernel.blocks(jobs, BLOCK, &text);
    let name = format!("recurrent.{}", op.func.name());
    Some(Lowered { name, launches: vec![launch], scratch_bytes: vec![scratch], packed: Vec::new() })
}

struct Layer<'a> {
    site: &'a Site<'a>,
    op: &'a Recurrent,
    dtype: DType,
    /// Type of states and sums.
    ty: &'static str,
    directions: usize,
    batch: usize,
    width: usize,
    gates: usize,
    /// Inputs of the node that are present, by name.
    inputs: Vec<&'static str>,
}

impl<'a> Layer<'a> {
    fn new(site: &'a Site<'a>, op: &'a Recurrent) -> Option<Layer<'a>> {
        let dtype = site.dtype(0);
        if !matches!(dtype, DType::F32 | DType::F16 | DType::BF16 | DType::F64) {
            return None;
        }
        let flags = [
            (op.bias, "bias"),
            (op.lengths, "lengths"),
            (op.initial_h, "initial_h"),
            (op.initial_c, "initial_c"),
            (op.peepholes, "peepholes"),
        ];
        let optional = flags.into_iter().filter(|(is_present, _)| *is_present).map(|(_, name)| name);
        Some(Layer {
            site,
            op,
            dtype,
            ty: if dtype == DType::F64 { "f64" } else { "f32" },
            directions: if op.direction == Direction::Bidirectional { 2 } else { 1 },
            batch: site.shape(0)[1],
            width: site.shape(0)[2],
            gates: match op.func {
                RecurrentFn::Rnn => 1,
                RecurrentFn::Gru => 3,
                RecurrentFn::Lstm => 4,
            },
            inputs: ["x", "w", "r"].into_iter().chain(optional).collect(),
        })
    }

    /// Numbers that a job keeps: h, c, the sums from x, the sums from h, and h after the reset gate.
    fn state_len(&self) -> usize {
        (3 + 2 * self.gates) * self.op.hidden
    }

    fn params(&self) -> Option<Vec<Param>> {
        let mut params = Vec::new();
        for (input, name) in self.inputs.iter().enumerate() {
            params.push(Param::read(input, *name, memory_type(self.site.dtype(input))?));
        }
        for (output, name) in ["y", "y_h", "y_c"].into_iter().enumerate().take(self.site.node.outputs.len()) {
            params.push(Param::write(output, name, memory_type(self.dtype)?));
        }
        params.push(Param::scratch(0, "states", self.ty));
        Some(params)
    }

    /// An element of an input at these indices.
    fn input(&self, name: &str, indices: &[&str]) -> Option<String> {
        let input = self.inputs.iter().position(|own| *own == name)?;
        let strides = self.site.strides(input);
        let terms = indices.iter().zip(strides).map(|(index, stride)| (format!("(u64)({index})"), stride as i64));
        Some(load(self.site.dtype(input), &format!("{name}[{}]", offset_sum(terms, "u64"))))
    }

    /// The same, or 0 where the input is not there.
    fn input_or_zero(&self, name: &str, indices: &[&str]) -> String {
        self.input(name, indices).unwrap_or_else(|| format!("({})0", self.ty))
    }

    fn output(&self, output: usize, name: &str, indices: &[&str], value: &str) -> String {
        let strides = self.site.out_strides(output);
        let terms = indices.iter().zip(strides).map(|(index, stride)| (format!("(u64)({index})"), stride as i64));
        format!("{name}[{}] = {};\n", offset_sum(terms, "u64"), element(self.dtype, value))
    }

    fn for_each_unit(&self, body: &str) -> String {
        format!("for (u32 unit = threadIdx.x; unit < {}u; unit += {BLOCK}u) {{\n{}}}\n", self.op.hidden, indent(body))
    }

    fn begin(&self) -> String {
        let (ty, hidden, batch) = (self.ty, self.op.hidden, self.batch);
        let rows = self.gates * hidden;
        let length = match self.input("lengths", &["row"]) {
            Some(length) => format!("axis_index((i64){length}, steps + 1)"),
            None => "steps".to_string(),
        };
        let mut text = format!(
            "const u64 direction = job / {batch}u, row = job % {batch}u;
{ty} *h = states + job * {state}u, *c = h + {hidden}u, *from_x = c + {hidden}u;
{ty} *from_h = from_x + {rows}u, *reset_h = from_h + {rows}u;
const i64 length = {length};
",
            state = self.state_len(),
        );
        let state = ["direction", "row", "unit"];
        let mut start = format!("h[unit] = {};\n", self.input_or_zero("initial_h", &state));
        let _ = writeln!(start, "c[unit] = {};", self.input_or_zero("initial_c", &state));
        let zero = self.output(0, "y", &["time", "direction", "row", "unit"], &format!("({ty})0"));
        let _ = write!(start, "for (i64 time = length; time < steps; time++) {zero}");
        text.push_str(&self.for_each_unit(&start));
        text.push_str("sync_block();\n");
        text
    }

    fn time(&self) -> &'static str {
        match self.op.direction {
            Direction::Forward => "step",
            Direction::Reverse => "length - 1 - step",
            Direction::Bidirectional => "direction == 1 ? length - 1 - step : step",
        }
    }

    /// All rows of w times x, and of r times h, plus their biases.
    fn products(&self) -> String {
        let (ty, hidden, width) = (self.ty, self.op.hidden, self.width);
        let rows = self.gates * hidden;
        let warps = format!("({BLOCK}u / WARP)");
        format!(
            "for (u32 gate = warp; gate < {rows}u; gate += {warps}) {{
    {ty} a = 0, b = 0;
    for (u32 k = lane; k < {width}u; k += WARP) a += {} * {};
    for (u32 k = lane; k < {hidden}u; k += WARP) b += {} * h[k];
    a = combine_lanes<WARP>(a, Add(), ({ty} *)0);
    b = combine_lanes<WARP>(b, Add(), ({ty} *)0);
    if (lane != 0) continue;
    from_x[gate] = a + {};
    from_h[gate] = b + {};
}}
sync_block();
",
            self.input_or_zero("w", &["direction", "gate", "k"]),
            self.input_or_zero("x", &["time", "row", "k"]),
            self.input_or_zero("r", &["direction", "gate", "k"]),
            self.input_or_zero("bias", &["direction", "gate"]),
            self.input_or_zero("bias", &["direction", &format!("gate + {rows}u")]),
        )
    }

    fn rnn(&self) -> String {
        self.for_each_unit("h[unit] = activate0(from_x[unit] + from_h[unit], direction);\n")
    }

    /// Gates in the order z, r, h: `H = (1 - z) g(..) + z H`.
    fn gru(&self) -> String {
        let (ty, hidden) = (self.ty, self.op.hidden);
        let candidate = format!("{}u + unit", 2 * hidden);
        let reset = if self.op.linear_before_reset {
            format!("from_h[{candidate}] *= reset;")
        } else {
            "reset_h[unit] = reset * h[unit];".to_string()
        };
        let mut text = self.for_each_unit(&format!(
            "const {ty} reset = activate0(from_x[{hidden}u + unit] + from_h[{hidden}u + unit], direction);
from_x[unit] = activate0(from_x[unit] + from_h[unit], direction);
{reset}
"
        ));
        text.push_str("sync_block();\n");
        if !self.op.linear_before_reset {
            let gate = format!("{}u + unit", 2 * hidden);
            let bias = format!("{}u + unit", 5 * hidden);
            let _ = write!(
                text,
                "for (u32 unit = warp; unit < {hidden}u; unit += {BLOCK}u / WARP) {{
    {ty} b = 0;
    for (u32 k = lane; k < {hidden}u; k += WARP) b += {} * reset_h[k];
    b = combine_lanes<WARP>(b, Add(), ({ty} *)0);
    if (lane == 0) from_h[{candidate}] = b + {};
}}
sync_block();
",
                self.input_or_zero("r", &["direction", &gate, "k"]),
                self.input_or_zero("bias", &["direction", &bias]),
            );
        }
        text.push_str(&self.for_each_unit(&format!(
            "const {ty} update = from_x[unit], candidate = activate1(from_x[{candidate}] + from_h[{candidate}], direction);
h[unit] = (1 - update) * candidate + update * h[unit];
"
        )));
        text
    }

    /// Gates in the order i, o, f, c: `C = f C + i g(..)`, `H = o h(C)`; peepholes in the order i, o, f.
    fn lstm(&self) -> String {
        let (ty, hidden) = (self.ty, self.op.hidden);
        let gate = |gate: usize| format!("from_x[{0}u + unit] + from_h[{0}u + unit]", gate * hidden);
        let sum = |at: usize, cell: &str| match self
            .input("peepholes", &["direction", &format!("{}u + unit", at * hidden)])
        {
            Some(peephole) => format!("{} + {peephole} * {cell}", gate(at)),
            None => gate(at),
        };
        let forget = if self.op.input_forget {
            "1 - input".to_string()
        } else {
            format!("activate0({}, direction)", sum(2, "old"))
        };
        self.for_each_unit(&format!(
            "const {ty} old = c[unit];
const {ty} input = activate0({}, direction);
const {ty} forget = {forget};
const {ty} cell = forget * old + input * activate1({}, direction);
const {ty} output = activate0({}, direction);
c[unit] = cell;
h[unit] = output * apply2(cell, direction);
",
            sum(0, "old"),
            gate(3),
            sum(1, "cell"),
        ))
    }

    fn store_step(&self) -> String {
        let store = self.output(0, "y", &["time", "direction", "row", "unit"], "h[unit]");
        // A thread stores the units that it has computed.
        format!("{}sync_block();\n", self.for_each_unit(&store))
    }

    fn end(&self) -> String {
        let state = ["direction", "row", "unit"];
        let mut store = self.output(1, "y_h", &state, "h[unit]");
        if self.op.func == RecurrentFn::Lstm {
            store.push_str(&self.output(2, "y_c", &state, "c[unit]"));
        }
        format!("{}sync_block();\n", self.for_each_unit(&store))
    }

    /// Functions `applyN`, and `activateN`, which limits its operand first: ONNX clips the sums that enter gates.
    fn activations(&self) -> Option<String> {
        let ty = self.ty;
        let real = if ty == "f64" { DType::F64 } else { DType::F32 };
        let count = self.op.activations.len() / self.directions;
        let mut text = String::new();
        for which in 0..count {
            let call = |direction: usize| {
                let at = direction * count + which;
                float_function(self.op.activations[at], real, "x", self.op.alphas[at], self.op.betas[at])
            };
            let _ = writeln!(text, "DEVICE {ty} apply{which}({ty} x, u64 direction) {{");
            if self.directions == 2 {
                let _ = writeln!(text, "    if (direction == 1) return {};", call(1)?);
            }
            let _ = writeln!(text, "    return {};\n}}", call(0)?);
            let (lo, hi) = (float_literal(real, -self.op.clip), float_literal(real, self.op.clip));
            let clipped = if self.op.clip > 0.0 { format!("clamp_float(x, {lo}, {hi})") } else { "x".to_string() };
            let _ = writeln!(
                text,
                "DEVICE {ty} activate{which}({ty} x, u64 direction) {{ return apply{which}({clipped}, direction); }}"
            );
        }
        Some(text)
    }
}
