//! What follows a product or convolution in one kernel: an expression of each f32 sum before it is stored, whose other
//! operands are read by their strides.

use std::fmt::Write as _;

use precast_ir::op::{Unary, UnaryFn};
use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::DType;

use crate::element::{constant_literal, load, memory_type, value_type};
use crate::kernel::Operand;
use crate::ops::elementwise;
use crate::ops::offsets::{broadcast_strides, offset_text};
use crate::site::Site;

/// A node that multiplies, alone or as the first one of a fused body.
#[derive(Clone, Copy)]
pub struct Root<'a> {
    /// The node, or the fused node around it.
    pub site: &'a Site<'a>,
    /// The body of the fused node.
    pub body: Option<&'a Graph>,
    /// What multiplies.
    pub node: &'a Node,
}

impl<'a> Root<'a> {
    /// A node that is alone.
    pub fn alone(site: &'a Site<'a>) -> Root<'a> {
        Root { site, body: None, node: site.node }
    }

    /// The first node of a fused body.
    pub fn of_body(site: &'a Site<'a>, body: &'a Graph) -> Option<Root<'a>> {
        let node = body.nodes().first()?;
        let is_outside = node.inputs.iter().all(|input| body.inputs().contains(input));
        is_outside.then_some(Root { site, body: Some(body), node })
    }

    /// Position of the root's operand among the operands of the site.
    pub fn input(&self, operand: usize) -> usize {
        match self.body {
            None => operand,
            Some(body) => {
                let value = self.node.inputs[operand];
                body.inputs().iter().position(|&input| input == value).expect("a root reads inputs of its body")
            }
        }
    }

    /// Sizes of the root's result.
    pub fn out_shape(&self) -> Vec<usize> {
        let graph = self.body.unwrap_or(self.site.graph);
        graph.ty(self.node.outputs[0]).shape().expect("dims are numbers when a node is lowered")
    }
}

/// How the axes of a result are rows and columns of a product: `row` counts all axes but one in order.
pub struct Coordinates {
    /// Sizes of the result.
    pub shape: Vec<usize>,
    /// Its strides.
    pub strides: Vec<usize>,
    /// Which axis the columns are.
    pub column_axis: usize,
}

impl Coordinates {
    /// The offset at `row` and `column` of something with these strides along the result's axes.
    pub fn offset(&self, strides: &[usize]) -> String {
        let rows: Vec<(usize, usize)> = (0..self.shape.len())
            .filter(|&axis| axis != self.column_axis)
            .map(|axis| (self.shape[axis], strides[axis]))
            .collect();
        let column = match strides[self.column_axis] {
            0 => String::new(),
            1 => " + column".to_string(),
            stride => format!(" + (i64)column * {stride}"),
        };
        format!("{}{column}", offset_text("row", &rows))
    }

    /// The offset of a result.
    pub fn place(&self) -> String {
        self.offset(&self.strides)
    }

    /// Whether neighbouring columns are neighbours in memory.
    pub fn is_by_columns(&self) -> bool {
        self.strides[self.column_axis] == 1 || self.shape[self.column_axis] == 1
    }
}

/// The printed epilogue of a product.
pub struct Epilogue {
    /// `struct Epilogue`, with a pointer for each operand: reading the operands of some results is one function, using
    /// them another.
    pub text: String,
    /// What the pointers are.
    pub operands: Vec<(Operand, DType)>,
    /// Words for the kernel's name.
    pub suffix: String,
    /// Whether an operand is read by the number of a row, and so by sizes of the result.
    pub reads_rows: bool,
    /// Names and values of conditions that are parameters of the kernel, members of the struct after the pointers.
    pub switches: Vec<(&'static str, bool)>,
    /// What it is, where parameters of the kernel can say it.
    common: Option<Common>,
}

/// The end of most convolutions: a bias, and a relu or nothing.
struct Common {
    bias: (Operand, DType),
    has_relu: bool,
}

impl Common {
    /// What follows the root, if it is that.
    fn of(root: &Root, bias: Option<usize>) -> Option<Common> {
        let (site, bias) = (root.site, bias?);
        if site.constant(bias).is_some_and(|tensor| tensor.len() == 1) {
            return None;
        }
        let is_relu = |node: &Node| {
            matches!(node.op, Op::Unary(Unary { func: UnaryFn::Relu, .. })) && node.inputs == root.node.outputs
        };
        let has_relu = match root.body.map_or(&[][..], |body| &body.nodes()[1..]) {
            [] => false,
            [relu] if is_relu(relu) => true,
            _ => return None,
        };
        Some(Common { bias: (Operand::Read(bias as u32), site.dtype(bias)), has_relu })
    }

    /// The struct whose last member says whether there is a relu.
    fn text(&self) -> Option<String> {
        let (bias, element) = (memory_type(self.bias.1)?, load(self.bias.1, "q.bias.at[i]"));
        Some(format!(
            "struct Epilogue {{\n    const {bias} *bias;\n    bool has_relu;\n    template <int W> struct Operands {{\n        \
             Vec<{bias}, W> bias;\n    }};\n    template <int W> DEVICE_MEMBER Operands<W> load(i64, int column, i64) const \
             {{\n        return {{load_vec<W>(bias + column)}};\n    }}\n    template <int W> DEVICE_MEMBER void apply(Acc \
             (&x)[W], const Operands<W> &q) const {{\n        const f32 low = has_relu ? 0.0f : -INFINITE;\n        UNROLL for \
             (int i = 0; i < W; i++) {{\n            f32 v = x[i] + {element};\n            x[i] = v < low ? low : v;\n        \
             }}\n    }}\n}};\n"
        ))
    }
}

/// A value of the body in registers: its type there, and its name or literal.
type Named = (DType, String);

/// The type of a value in registers: floats are f32, conditions are bools, and others have no place in an epilogue.
fn register_type(dtype: DType) -> Option<DType> {
    match dtype {
        DType::F16 | DType::BF16 | DType::F32 => Some(DType::F32),
        DType::Bool => Some(DType::Bool),
        _ => None,
    }
}

/// Reads the operands of the expression.
struct Reader<'a> {
    site: &'a Site<'a>,
    coordinates: &'a Coordinates,
    operands: Vec<(Operand, DType)>,
    /// Members that hold what was read, and how it is read.
    fields: String,
    loads: String,
    locals: String,
    reads_rows: bool,
}

impl Reader<'_> {
    /// An operand's element; `is_column` if it has one number for each column whatever its shape.
    fn element(&mut self, input: usize, is_column: bool) -> Option<Named> {
        let dtype = self.site.dtype(input);
        let in_register = register_type(dtype)?;
        if let Some(tensor) = self.site.constant(input).filter(|tensor| tensor.len() == 1) {
            return Some((in_register, constant_literal(tensor)?));
        }
        let coordinates = self.coordinates;
        let strides = if is_column {
            (0..coordinates.shape.len()).map(|axis| usize::from(axis == coordinates.column_axis)).collect()
        } else {
            broadcast_strides(&self.site.shape(input), &self.site.strides(input), &coordinates.shape)?
        };
        let at = self.operands.len();
        self.operands.push((Operand::Read(input as u32), dtype));
        let (name, ty) = (memory_type(dtype)?, value_type(dtype)?);
        let column_stride = strides[coordinates.column_axis];
        let is_same =
            (0..strides.len()).all(|axis| coordinates.shape[axis] == 1 || strides[axis] == coordinates.strides[axis]);
        let offset = if is_same { "at".to_string() } else { coordinates.offset(&strides) };
        self.reads_rows |= offset.contains("row");
        if column_stride == 0 {
            let _ = writeln!(self.fields, "        {ty} q{at};");
            let _ = writeln!(self.loads, "        q.q{at} = {};", load(dtype, &format!("p{at}[{offset}]")));
            return Some((in_register, format!("q.q{at}")));
        }
        let _ = writeln!(self.fields, "        Vec<{name}, W> q{at};");
        let _ = if column_stride == 1 {
            writeln!(self.loads, "        q.q{at} = load_vec<W>(p{at} + {offset});")
        } else {
            writeln!(
                self.loads,
                "        UNROLL for (int i = 0; i < W; i++) q.q{at}.at[i] = p{at}[{offset} + i * {column_stride}];"
            )
        };
        let _ = writeln!(self.locals, "            {ty} o{at} = {};", load(dtype, &format!("q.q{at}.at[i]")));
        Some((in_register, format!("o{at}")))
    }
}

impl Epilogue {
    /// What follows the root: `bias` is an operand with one number a column. `None` if a node has no expression here.
    pub fn of(root: &Root, coordinates: &Coordinates, bias: Option<usize>) -> Option<Epilogue> {
        let site = root.site;
        let (operands, fields, loads, locals) = (Vec::new(), String::new(), String::new(), String::new());
        let mut reader = Reader { site, coordinates, operands, fields, loads, locals, reads_rows: false };
        let mut steps = String::new();
        let mut value = "v0".to_string();
        if let Some(bias) = bias {
            let (_, bias) = reader.element(bias, true)?;
            let _ = writeln!(steps, "            f32 vb = v0 + {bias};");
            value = "vb".to_string();
        }
        let mut suffix = String::new();
        if let Some(body) = root.body {
            let mut names: Vec<(ValueId, Named)> = vec![(root.node.outputs[0], (DType::F32, value.clone()))];
            for (position, node) in body.nodes().iter().enumerate().skip(1) {
                let (dtype, expression) = expression(body, node, &mut names, &mut reader)?;
                value = format!("v{position}");
                let _ = writeln!(steps, "            {} {value} = {expression};", value_type(dtype)?);
                names.push((node.outputs[0], (dtype, value.clone())));
            }
            let [output] = body.outputs() else { return None };
            let is_last = names.last().is_some_and(|(last, (dtype, _))| *last == output.value && *dtype == DType::F32);
            if !is_last || body.ty(output.value).shape()? != root.out_shape() {
                return None;
            }
            suffix = suffix_of(&body.nodes()[1..]);
        }
        let members: String = reader.operands.iter().enumerate().fold(String::new(), |mut text, (at, (_, dtype))| {
            let _ = writeln!(text, "    const {} *p{at};", memory_type(*dtype).unwrap_or("u8"));
            text
        });
        let Reader { operands, fields, loads, locals, reads_rows, .. } = reader;
        let body = if value == "v0" {
            String::new()
        } else {
            format!(
                "        UNROLL for (int i = 0; i < W; i++) {{\n            f32 v0 = x[i];\n{locals}{steps}            x[i] = \
                 {value};\n        }}\n"
            )
        };
        let text = format!(
            "struct Epilogue {{\n{members}    template <int W> struct Operands {{\n{fields}    }};\n    template <int W> \
             DEVICE_MEMBER Operands<W> load(i64 row, int column, i64 at) const {{\n        Operands<W> q;\n{loads}        \
             return q;\n    }}\n    template <int W> DEVICE_MEMBER void apply(Acc (&x)[W], const Operands<W> &q) const \
             {{\n{body}    }}\n}};\n"
        );
        let common = Common::of(root, bias);
        Some(Epilogue { text, operands, suffix, reads_rows, switches: Vec::new(), common })
    }

    /// Makes what follows a parameter of the kernel, where one can say it, so that kernels with the other end are the same.
    pub fn switch(&mut self) {
        let Some((common, text)) = self.common.take().and_then(|common| common.text().map(|text| (common, text)))
        else {
            return;
        };
        self.text = text;
        self.operands = vec![common.bias];
        self.switches = vec![("has_relu", common.has_relu)];
    }

    /// What becomes of several sums of one place: `sums` are values of the body, `nodes` what computes the result from them.
    /// `None` if a node has no expression here.
    pub fn of_sums(
        site: &Site,
        body: &Graph,
        coordinates: &Coordinates,
        sums: &[ValueId],
        nodes: &[&Node],
    ) -> Option<Epilogue> {
        let (operands, fields, loads, locals) = (Vec::new(), String::new(), String::new(), String::new());
        let mut reader = Reader { site, coordinates, operands, fields, loads, locals, reads_rows: false };
        let mut names: Vec<(ValueId, Named)> =
            sums.iter().enumerate().map(|(at, &sum)| (sum, (DType::F32, format!("sums[{at}]")))).collect();
        let mut steps = String::new();
        for (position, node) in nodes.iter().enumerate() {
            let (dtype, expression) = expression(body, node, &mut names, &mut reader)?;
            let value = format!("v{position}");
            let _ = writeln!(steps, "        {} {value} = {expression};", value_type(dtype)?);
            names.push((node.outputs[0], (dtype, value)));
        }
        let [output] = body.outputs() else { return None };
        let (_, (_, result)) =
            names.iter().find(|(value, (dtype, _))| *value == output.value && *dtype == DType::F32)?;
        if body.ty(output.value).shape()? != coordinates.shape {
            return None;
        }
        let members: String = reader.operands.iter().enumerate().fold(String::new(), |mut text, (at, (_, dtype))| {
            let _ = writeln!(text, "    const {} *p{at};", memory_type(*dtype).unwrap_or("u8"));
            text
        });
        let suffix = nodes.iter().fold(String::new(), |text, node| text + "+" + elementwise::function(&node.op));
        let Reader { operands, fields, loads, locals, reads_rows, .. } = reader;
        let text = format!(
            "struct Epilogue {{\n{members}    template <int W> struct Operands {{\n{fields}    }};\n    template <int W> \
             DEVICE_MEMBER Operands<W> load(i64 row, int column, i64 at) const {{\n        Operands<W> q;\n{loads}        \
             return q;\n    }}\n    DEVICE_MEMBER f32 join(const f32 *sums, const Operands<1> &q) const {{\n        \
             const int i = 0;\n{locals}{steps}        return {result};\n    }}\n}};\n"
        );
        Some(Epilogue { text, operands, suffix, reads_rows, switches: Vec::new(), common: None })
    }

    /// Its operands as parameters of a kernel from position `first` on, and as members of the struct.
    pub fn parameters(&self, first: usize) -> [String; 2] {
        let (mut parameters, mut values) = (String::new(), Vec::new());
        for (at, (_, dtype)) in self.operands.iter().enumerate() {
            let _ = write!(parameters, "Arg<const {}, {}> e{at}, ", memory_type(*dtype).unwrap_or("u8"), first + at);
            values.push(format!("e{at}.get()"));
        }
        values.extend(self.switches.iter().map(|(name, _)| format!("{name} != 0")));
        [parameters, values.join(", ")]
    }

    /// Whether it does nothing.
    pub fn is_empty(&self) -> bool {
        !self.text.contains("x[i] =")
    }
}

fn suffix_of(nodes: &[Node]) -> String {
    nodes.iter().fold(String::new(), |text, node| text + "+" + elementwise::function(&node.op))
}

/// A node of the body: its type in registers and its expression.
fn expression(
    body: &Graph,
    node: &Node,
    names: &mut Vec<(ValueId, Named)>,
    reader: &mut Reader,
) -> Option<(DType, String)> {
    let mut inputs: Vec<Named> = Vec::new();
    for &input in &node.inputs {
        let named = match names.iter().find(|(value, _)| *value == input) {
            Some((_, named)) => named.clone(),
            None => {
                let named = match body.inputs().iter().position(|&outer| outer == input) {
                    Some(position) => reader.element(position, false)?,
                    None => {
                        let tensor = body.constant(input).filter(|tensor| tensor.len() == 1)?;
                        (register_type(tensor.dtype())?, constant_literal(tensor)?)
                    }
                };
                names.push((input, named.clone()));
                named
            }
        };
        inputs.push(named);
    }
    let to = register_type(body.ty(node.outputs[0]).dtype)?;
    // Between floats a cast only rounds, which the store does.
    if matches!(node.op, Op::Cast(_)) {
        return (inputs[0].0 == to).then(|| inputs.swap_remove(0));
    }
    Some((to, elementwise::expression(&node.op, &inputs, to)?))
}
