//! Random ONNX graphs that are valid by construction: shapes are known while a graph grows, and every node is chosen so that
//! it fits what is there. Functions that jump are put on exact values alone, so that a last bit cannot become a difference.

use precast::{DType, Tensor};
use precast_onnx::proto::{
    AttributeProto, AttributeType, DimensionProto, DimensionValue, GraphProto, ModelProto, NodeProto,
    OperatorSetIdProto, TensorProto, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};

use super::mutate::Random;

/// Version of ai.onnx that graphs are written in.
const OPSET: i64 = 18;
/// Nodes of the largest graph.
const NODES_MAX: usize = 24;
/// Elements of the largest value.
const ELEMENTS_MAX: usize = 4096;
const SIZES: [usize; 8] = [1, 2, 3, 4, 5, 7, 8, 16];
const FLOAT: i32 = 1;
const INT64: i32 = 7;

/// A graph with inputs for it.
pub struct Generated {
    /// The graph.
    pub model: ModelProto,
    /// Inputs by name.
    pub inputs: Vec<(String, Tensor)>,
}

/// The graph of a seed.
pub fn generate(seed: u64) -> Generated {
    let mut growing = Growing::new(Random::new(seed));
    let nodes = 1 + growing.random.below(NODES_MAX);
    for _ in 0..nodes {
        growing.grow();
    }
    growing.finish()
}

/// A value of a growing graph.
#[derive(Clone)]
struct Known {
    name: String,
    shape: Vec<usize>,
    /// Whether every implementation has the same bits of it.
    is_exact: bool,
    is_used: bool,
}

struct Growing {
    random: Random,
    graph: GraphProto,
    values: Vec<Known>,
    inputs: Vec<(String, Tensor)>,
    names: usize,
}

/// Functions of one element that are smooth enough for a last bit to stay one.
const SMOOTH: [&str; 19] = [
    "Abs",
    "Neg",
    "Relu",
    "Sigmoid",
    "Tanh",
    "Erf",
    "Softplus",
    "LeakyRelu",
    "Elu",
    "Selu",
    "HardSigmoid",
    "HardSwish",
    "Sin",
    "Cos",
    "Atan",
    "Softsign",
    "Celu",
    "Mish",
    "Identity",
];
/// Those that keep exact values exact.
const EXACT: [&str; 4] = ["Abs", "Neg", "Relu", "Identity"];
/// Functions that jump.
const JUMPS: [&str; 4] = ["Floor", "Ceil", "Round", "Sign"];

impl Growing {
    fn new(random: Random) -> Growing {
        let mut growing = Growing {
            random,
            graph: GraphProto { name: "random".to_string(), ..GraphProto::default() },
            values: Vec::new(),
            inputs: Vec::new(),
            names: 0,
        };
        for _ in 0..1 + growing.random.below(3) {
            growing.add_input();
        }
        growing
    }

    fn add_input(&mut self) {
        let shape = self.some_shape();
        let name = format!("x{}", self.inputs.len());
        self.graph.input.push(declared(&name, &shape));
        let tensor = self.tensor(&shape);
        self.inputs.push((name.clone(), tensor));
        self.values.push(Known { name, shape, is_exact: true, is_used: false });
    }

    fn some_shape(&mut self) -> Vec<usize> {
        let rank = 1 + self.random.below(4);
        let mut shape: Vec<usize> = (0..rank).map(|_| *self.random.pick(&SIZES)).collect();
        while shape.iter().product::<usize>() > ELEMENTS_MAX {
            let axis = self.random.below(rank);
            shape[axis] = 1;
        }
        shape
    }

    /// Multiples of 1/8 between -2 and 2.
    fn tensor(&mut self, shape: &[usize]) -> Tensor {
        let count = shape.iter().product();
        let elements: Vec<f64> = (0..count).map(|_| self.random.below(33) as f64 / 8.0 - 2.0).collect();
        Tensor::from_f64(DType::F32, shape, &elements, true).expect("as many elements as the shape has")
    }

    fn fresh(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    fn constant(&mut self, shape: &[usize]) -> String {
        let (name, tensor) = (self.fresh(), self.tensor(shape));
        self.graph.initializer.push(tensor_proto(&name, FLOAT, shape, tensor.as_bytes()));
        name
    }

    fn ints(&mut self, ints: &[i64]) -> String {
        let name = self.fresh();
        let bytes: Vec<u8> = ints.iter().flat_map(|int| int.to_le_bytes()).collect();
        self.graph.initializer.push(tensor_proto(&name, INT64, &[ints.len()], &bytes));
        name
    }

    /// Adds a node on `x` and constants, whose result has a shape.
    fn node(&mut self, op: &str, x: &Known, more: &[String], attributes: Vec<AttributeProto>, shape: Vec<usize>) {
        self.node_with(op, x, more, attributes, shape, false);
    }

    fn node_with(
        &mut self,
        op: &str,
        x: &Known,
        more: &[String],
        attribute: Vec<AttributeProto>,
        shape: Vec<usize>,
        is_exact: bool,
    ) {
        if shape.iter().product::<usize>() > ELEMENTS_MAX {
            return;
        }
        let output = self.fresh();
        let mut input = vec![x.name.clone()];
        input.extend_from_slice(more);
        for value in self.values.iter_mut().filter(|value| input.contains(&value.name)) {
            value.is_used = true;
        }
        self.graph.node.push(NodeProto {
            op_type: op.to_string(),
            input,
            output: vec![output.clone()],
            attribute,
            ..NodeProto::default()
        });
        self.values.push(Known { name: output, shape, is_exact, is_used: false });
    }

    /// Adds one node that fits.
    fn grow(&mut self) {
        let x = self.random.pick(&self.values).clone();
        match self.random.below(17) {
            0 | 1 => self.unary(&x),
            2 | 3 => self.binary(&x),
            4 => self.product(&x),
            5 => self.convolution(&x),
            6 => self.pool(&x),
            7 => self.reduction(&x),
            8 => self.normalisation(&x),
            9 => self.transpose(&x),
            10 => self.reshape(&x),
            11 => self.concat(&x),
            12 => self.slice(&x),
            13 => self.pad(&x),
            14 => self.gather(&x),
            15 => self.select(&x),
            _ => self.spread(&x),
        }
    }

    fn unary(&mut self, x: &Known) {
        if x.is_exact && self.random.once_in(4) {
            let op = *self.random.pick(&JUMPS);
            return self.node_with(op, x, &[], vec![], x.shape.clone(), true);
        }
        let op = *self.random.pick(&SMOOTH);
        let op = if op == "Mish" && OPSET < 18 { "Tanh" } else { op };
        self.node_with(op, x, &[], vec![], x.shape.clone(), x.is_exact && EXACT.contains(&op));
    }

    fn binary(&mut self, x: &Known) {
        let op = *self.random.pick(&["Add", "Sub", "Mul", "Max", "Min", "PRelu", "Div", "Pow"]);
        match op {
            // Denominators and exponents that keep numbers small.
            "Div" => {
                let exponential = self.positive(x);
                let shape = x.shape.clone();
                self.node("Div", x, &[exponential], vec![], shape);
            }
            "Pow" => {
                let name = self.fresh();
                let exponent = *self.random.pick(&[2.0f32, 3.0, 1.0]);
                self.graph.initializer.push(tensor_proto(&name, FLOAT, &[], &exponent.to_le_bytes()));
                self.node("Pow", x, &[name], vec![], x.shape.clone());
            }
            "PRelu" => {
                let slope = self.constant(&[*x.shape.last().unwrap_or(&1)]);
                self.node("PRelu", x, &[slope], vec![], x.shape.clone());
            }
            _ => {
                let other = self.operand(&x.shape);
                self.node(op, x, &[other], vec![], x.shape.clone());
            }
        }
    }

    /// 1 + |x|.
    fn positive(&mut self, x: &Known) -> String {
        let one = self.fresh();
        self.graph.initializer.push(tensor_proto(&one, FLOAT, &[], &1.0f32.to_le_bytes()));
        self.node("Abs", x, &[], vec![], x.shape.clone());
        let absolute = self.values.last().expect("a node was added").clone();
        self.node("Add", &absolute, &[one], vec![], x.shape.clone());
        self.values.last().expect("a node was added").name.clone()
    }

    /// A value or constant that broadcasts to a shape.
    fn operand(&mut self, shape: &[usize]) -> String {
        let fits: Vec<String> = self
            .values
            .iter()
            .filter(|value| {
                value.shape.len() <= shape.len()
                    && value.shape.iter().rev().zip(shape.iter().rev()).all(|(&own, &size)| own == 1 || own == size)
            })
            .map(|value| value.name.clone())
            .collect();
        if !fits.is_empty() && self.random.once_in(2) {
            return self.random.pick(&fits).clone();
        }
        let from = self.random.below(shape.len() + 1);
        let shape: Vec<usize> =
            shape[from..].iter().map(|&size| if self.random.once_in(3) { 1 } else { size }).collect();
        self.constant(&shape)
    }

    fn product(&mut self, x: &Known) {
        let Some((&inner, rows)) = x.shape.split_last() else { return };
        let columns = *self.random.pick(&SIZES);
        let mut shape = rows.to_vec();
        shape.push(columns);
        if x.shape.len() == 2 && self.random.once_in(2) {
            let is_transposed = self.random.once_in(2);
            let weights = self.constant(&if is_transposed { [columns, inner] } else { [inner, columns] });
            let bias = self.constant(&[columns]);
            let attributes = vec![int("transB", i64::from(is_transposed)), float("alpha", 0.5)];
            return self.node("Gemm", x, &[weights, bias], attributes, shape);
        }
        let weights = self.constant(&[inner, columns]);
        self.node("MatMul", x, &[weights], vec![], shape);
    }

    fn convolution(&mut self, x: &Known) {
        if x.shape.len() < 3 {
            return;
        }
        let (channels, spatial) = (x.shape[1], &x.shape[2..]);
        let divisors: Vec<usize> = (1..=channels).filter(|&groups| channels % groups == 0).collect();
        let groups = *self.random.pick(&divisors);
        let outputs = groups * (1 + self.random.below(3));
        let (mut window, mut stride, mut dilation, mut pads, mut shape) =
            (vec![], vec![], vec![], vec![0; 2 * spatial.len()], vec![x.shape[0], outputs]);
        for (axis, &size) in spatial.iter().enumerate() {
            let (own_window, own_stride) = (1 + self.random.below(3), 1 + self.random.below(2));
            let own_dilation = 1 + self.random.below(2);
            let (lo, hi) = (self.random.below(3), self.random.below(3));
            let extent = (own_window - 1) * own_dilation + 1;
            let Some(room) = (size + lo + hi).checked_sub(extent) else { return };
            (pads[axis], pads[spatial.len() + axis]) = (lo as i64, hi as i64);
            window.push(own_window);
            stride.push(own_stride as i64);
            dilation.push(own_dilation as i64);
            shape.push(room / own_stride + 1);
        }
        let mut filter = vec![outputs, channels / groups];
        filter.extend(&window);
        let mut more = vec![self.constant(&filter)];
        if self.random.once_in(2) {
            more.push(self.constant(&[outputs]));
        }
        let attributes = vec![
            ints("strides", &stride),
            ints("dilations", &dilation),
            ints("pads", &pads),
            int("group", groups as i64),
        ];
        self.node("Conv", x, &more, attributes, shape);
    }

    fn pool(&mut self, x: &Known) {
        if x.shape.len() < 3 {
            return;
        }
        if self.random.once_in(4) {
            let op = *self.random.pick(&["GlobalAveragePool", "GlobalMaxPool"]);
            let mut shape = x.shape[..2].to_vec();
            shape.extend(vec![1; x.shape.len() - 2]);
            return self.node_with(op, x, &[], vec![], shape, x.is_exact && op == "GlobalMaxPool");
        }
        let is_max = self.random.once_in(2);
        let (mut window, mut stride, mut shape) = (vec![], vec![], x.shape[..2].to_vec());
        for &size in &x.shape[2..] {
            let (own, step) = (1 + self.random.below(3.min(size)), 1 + self.random.below(2));
            window.push(own as i64);
            stride.push(step as i64);
            shape.push((size - own) / step + 1);
        }
        let op = if is_max { "MaxPool" } else { "AveragePool" };
        let attributes = vec![ints("kernel_shape", &window), ints("strides", &stride)];
        self.node_with(op, x, &[], attributes, shape, x.is_exact && is_max);
    }

    fn reduction(&mut self, x: &Known) {
        let op = *self.random.pick(&[
            "ReduceSum",
            "ReduceMean",
            "ReduceMax",
            "ReduceMin",
            "ReduceL1",
            "ReduceL2",
            "ReduceSumSquare",
            "ReduceLogSumExp",
        ]);
        let keeps = self.random.once_in(2);
        let axes: Vec<usize> = (0..x.shape.len()).filter(|_| self.random.once_in(2)).collect();
        if axes.is_empty() || (!keeps && axes.len() == x.shape.len()) {
            return;
        }
        let list: Vec<i64> = axes.iter().map(|&axis| axis as i64).collect();
        let axis_name = self.ints(&list);
        let sizes = x.shape.iter().enumerate();
        let shape = sizes.filter_map(|(axis, &size)| match axes.contains(&axis) {
            true => keeps.then_some(1),
            false => Some(size),
        });
        let shape = shape.collect();
        let is_exact = x.is_exact && matches!(op, "ReduceMax" | "ReduceMin");
        self.node_with(op, x, &[axis_name], vec![int("keepdims", i64::from(keeps))], shape, is_exact);
    }

    fn normalisation(&mut self, x: &Known) {
        let rank = x.shape.len();
        let axis = self.random.below(rank);
        match self.random.below(4) {
            0 => self.node("Softmax", x, &[], vec![int("axis", axis as i64)], x.shape.clone()),
            1 => self.node("LogSoftmax", x, &[], vec![int("axis", axis as i64)], x.shape.clone()),
            2 => {
                let scale = self.constant(&x.shape[axis..]);
                let bias = self.constant(&x.shape[axis..]);
                // A variance near 0 would make a last bit a large one.
                let attributes = vec![int("axis", axis as i64), float("epsilon", 0.5)];
                self.node("LayerNormalization", x, &[scale, bias], attributes, x.shape.clone());
            }
            _ if rank >= 2 => {
                let [scale, bias, mean] = [0; 3].map(|_| self.constant(&[x.shape[1]]));
                let variance = self.fresh();
                let ones = vec![1.0f32; x.shape[1]].into_iter().flat_map(f32::to_le_bytes).collect::<Vec<u8>>();
                self.graph.initializer.push(tensor_proto(&variance, FLOAT, &[x.shape[1]], &ones));
                self.node("BatchNormalization", x, &[scale, bias, mean, variance], vec![], x.shape.clone());
            }
            _ => {}
        }
    }

    fn transpose(&mut self, x: &Known) {
        let mut perm: Vec<usize> = (0..x.shape.len()).collect();
        for at in (1..perm.len()).rev() {
            let other = self.random.below(at + 1);
            perm.swap(at, other);
        }
        let shape = perm.iter().map(|&axis| x.shape[axis]).collect();
        let list: Vec<i64> = perm.iter().map(|&axis| axis as i64).collect();
        self.node_with("Transpose", x, &[], vec![ints("perm", &list)], shape, x.is_exact);
    }

    fn reshape(&mut self, x: &Known) {
        let count: usize = x.shape.iter().product();
        let mut shape = Vec::new();
        let mut rest = count;
        for _ in 0..self.random.below(4) {
            let divisors: Vec<usize> = (1..=rest).filter(|&size| rest.is_multiple_of(size)).collect();
            let size = *self.random.pick(&divisors);
            shape.push(size);
            rest /= size;
        }
        shape.push(rest);
        let list: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
        let target = self.ints(&list);
        self.node_with("Reshape", x, &[target], vec![], shape, x.is_exact);
    }

    fn concat(&mut self, x: &Known) {
        let axis = self.random.below(x.shape.len());
        let mut other = x.shape.clone();
        other[axis] = 1 + self.random.below(3);
        let mut shape = x.shape.clone();
        shape[axis] += other[axis];
        let constant = self.constant(&other);
        self.node_with("Concat", x, &[constant], vec![int("axis", axis as i64)], shape, x.is_exact);
    }

    fn slice(&mut self, x: &Known) {
        let axis = self.random.below(x.shape.len());
        let size = x.shape[axis];
        let step = *self.random.pick(&[1i64, 1, 2, -1]);
        let start = self.random.below(size);
        let (from, to) = if step > 0 { (start as i64, size as i64) } else { (start as i64, -(size as i64) - 1) };
        let length = if step > 0 { (size - start).div_ceil(step as usize) } else { start + 1 };
        let more = [&[from], &[to], &[axis as i64], &[step]].map(|list| self.ints(list));
        let mut shape = x.shape.clone();
        shape[axis] = length;
        self.node_with("Slice", x, &more, vec![], shape, x.is_exact);
    }

    fn pad(&mut self, x: &Known) {
        let rank = x.shape.len();
        let pads: Vec<i64> = (0..2 * rank).map(|_| self.random.below(3) as i64).collect();
        let shape = x.shape.iter().enumerate().map(|(axis, &size)| size + (pads[axis] + pads[rank + axis]) as usize);
        let shape = shape.collect();
        let more = [self.ints(&pads)];
        let mode = *self.random.pick(&["constant", "edge"]);
        self.node_with("Pad", x, &more, vec![string("mode", mode)], shape, x.is_exact);
    }

    fn gather(&mut self, x: &Known) {
        let axis = self.random.below(x.shape.len());
        let size = x.shape[axis];
        let count = 1 + self.random.below(4);
        let indices: Vec<i64> = (0..count).map(|_| self.random.below(2 * size) as i64 - size as i64).collect();
        let mut shape = x.shape.clone();
        shape[axis] = count;
        let more = [self.ints(&indices)];
        self.node_with("Gather", x, &more, vec![int("axis", axis as i64)], shape, x.is_exact);
    }

    /// x where an exact value is below a constant, else another.
    fn select(&mut self, x: &Known) {
        if !x.is_exact {
            return;
        }
        let threshold = self.constant(&[*x.shape.last().unwrap_or(&1)]);
        let op = *self.random.pick(&["Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Equal"]);
        let condition = self.fresh();
        self.graph.node.push(NodeProto {
            op_type: op.to_string(),
            input: vec![x.name.clone(), threshold],
            output: vec![condition.clone()],
            ..NodeProto::default()
        });
        let condition = Known { name: condition, shape: x.shape.clone(), is_exact: true, is_used: true };
        let [yes, no] = [0; 2].map(|_| self.operand(&x.shape));
        self.node("Where", &condition, &[yes, no], vec![], x.shape.clone());
    }

    /// Tile, Expand or Unsqueeze.
    fn spread(&mut self, x: &Known) {
        let rank = x.shape.len();
        match self.random.below(3) {
            0 => {
                let times: Vec<i64> = (0..rank).map(|_| 1 + self.random.below(2) as i64).collect();
                let shape = x.shape.iter().zip(&times).map(|(&size, &times)| size * times as usize).collect();
                let more = [self.ints(&times)];
                self.node_with("Tile", x, &more, vec![], shape, x.is_exact);
            }
            1 if rank < 4 => {
                let axis = self.random.below(rank + 1);
                let mut shape = x.shape.clone();
                shape.insert(axis, 1);
                let more = [self.ints(&[axis as i64])];
                self.node_with("Unsqueeze", x, &more, vec![], shape, x.is_exact);
            }
            _ => {
                let shape: Vec<usize> =
                    x.shape.iter().map(|&size| if size == 1 { 1 + self.random.below(4) } else { size }).collect();
                let list: Vec<i64> = shape.iter().map(|&size| size as i64).collect();
                let more = [self.ints(&list)];
                self.node_with("Expand", x, &more, vec![], shape, x.is_exact);
            }
        }
    }

    /// Values that nothing reads are outputs.
    fn finish(mut self) -> Generated {
        let made: Vec<Known> = self.values.iter().skip(self.inputs.len()).cloned().collect();
        let mut outputs: Vec<&Known> = made.iter().filter(|value| !value.is_used).collect();
        if outputs.is_empty() {
            outputs = made.last().into_iter().collect();
        }
        self.graph.output = outputs.iter().map(|value| declared(&value.name, &value.shape)).collect();
        if self.graph.output.is_empty() {
            let x = self.values[0].clone();
            self.node("Identity", &x, &[], vec![], x.shape.clone());
            let name = self.values.last().map_or(x.name.clone(), |value| value.name.clone());
            self.graph.output.push(declared(&name, &x.shape));
        }
        let opset_import = vec![OperatorSetIdProto { domain: String::new(), version: OPSET }];
        let model = ModelProto { ir_version: 8, opset_import, graph: Some(self.graph), ..ModelProto::default() };
        Generated { model, inputs: self.inputs }
    }
}

fn declared(name: &str, shape: &[usize]) -> ValueInfoProto {
    let dim = |&size: &usize| DimensionProto {
        value: Some(DimensionValue::DimValue(size as i64)),
        ..DimensionProto::default()
    };
    let tensor =
        TensorTypeProto { elem_type: FLOAT, shape: Some(TensorShapeProto { dim: shape.iter().map(dim).collect() }) };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() });
    ValueInfoProto { name: name.to_string(), r#type, ..ValueInfoProto::default() }
}

fn tensor_proto(name: &str, data_type: i32, shape: &[usize], bytes: &[u8]) -> TensorProto {
    TensorProto {
        name: name.to_string(),
        data_type,
        dims: shape.iter().map(|&size| size as i64).collect(),
        raw_data: Some(bytes.to_vec().into()),
        ..TensorProto::default()
    }
}

fn attribute(name: &str, kind: AttributeType) -> AttributeProto {
    AttributeProto { name: name.to_string(), r#type: Some(kind.into()), ..AttributeProto::default() }
}

fn int(name: &str, i: i64) -> AttributeProto {
    AttributeProto { i: Some(i), ..attribute(name, AttributeType::Int) }
}

fn float(name: &str, f: f32) -> AttributeProto {
    AttributeProto { f: Some(f), ..attribute(name, AttributeType::Float) }
}

fn ints(name: &str, ints: &[i64]) -> AttributeProto {
    AttributeProto { ints: ints.to_vec(), ..attribute(name, AttributeType::Ints) }
}

fn string(name: &str, text: &str) -> AttributeProto {
    AttributeProto { s: Some(text.as_bytes().to_vec().into()), ..attribute(name, AttributeType::String) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use precast::Model;
    use prost::Message;

    use super::*;

    #[test]
    fn every_graph_imports_and_all_families_occur() {
        let mut operators = BTreeSet::new();
        for seed in 0..300 {
            let generated = generate(seed);
            let model = Model::from_bytes(generated.model.encode_to_vec().into()).expect("a valid file");
            let graph = model.symbolic_graph().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let declared = generated.model.graph.expect("a graph");
            operators.extend(declared.node.iter().map(|node| node.op_type.clone()));
            let shapes: Vec<Option<Vec<usize>>> =
                graph.outputs().iter().map(|output| graph.ty(output.value).shape()).collect();
            assert!(shapes.iter().all(Option::is_some), "seed {seed}");
        }
        assert!(operators.len() >= 55, "{}: {operators:?}", operators.len());
    }
}
