//! A graph that grows node by node. Each node is evaluated by reference as it is added, so that the next one is chosen with
//! shapes and values known: what makes no sense is never added, and sizes that depend on values need no rule of their own.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use anyhow::{Context, Result};
use precast::{DType, Model, Runner, RunnerOptions, Tensor};
use precast_onnx::proto::{AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use prost::Message;

use super::messages::{Size, declared, declared_as, tensor_message};
use super::mutate::Random;

/// Elements of the largest value.
const ELEMENTS_MAX: usize = 4096;
/// Numbers beyond this make differences of rounding large, so what makes them is not added.
const MAGNITUDE_MAX: f64 = 64.0;
/// The same for integers, which do not round but cost time as sizes and counts.
const INTEGER_MAX: f64 = 1e6;
/// Graph inputs; beyond this many new operands are constants.
const INPUTS_MAX: usize = 8;
/// Sizes of dims; 0 comes seldom, since little is left of a graph after it.
const SIZES: [usize; 24] = [1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 6, 7, 7, 8, 8, 9, 13, 16, 17, 31, 0];
/// IR version of the files.
const IR_VERSION: i64 = 10;

/// Floats that graphs compute in, the common one most often.
pub const FLOATS: &[DType] = &[DType::F32, DType::F32, DType::F32, DType::F32, DType::F16, DType::BF16, DType::F64];
/// Integers of whole bytes.
pub const INTEGERS: &[DType] = &[
    DType::I64,
    DType::I32,
    DType::I64,
    DType::I32,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::U64,
];
/// Integers without a sign.
pub const UNSIGNED: &[DType] = &[DType::U8, DType::U16, DType::U32, DType::U64];
/// Integers with a sign.
pub const SIGNED: &[DType] = &[DType::I64, DType::I32, DType::I8, DType::I16];
/// Floats and integers.
pub const NUMBERS: &[DType] = &[
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I64,
    DType::I32,
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U32,
    DType::U64,
];
/// Everything that moves without being looked at.
pub const ANY: &[DType] = &[
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I64,
    DType::I32,
    DType::U8,
    DType::I8,
    DType::Bool,
    DType::Bool,
];
/// Types that onnxruntime has kernels for in most operators.
const COMMON: &[DType] = &[DType::F32, DType::I64, DType::I32, DType::Bool, DType::U8, DType::I8];
/// Truth values.
pub const BOOL: &[DType] = &[DType::Bool];

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Input,
    Constant,
    Node,
    /// The empty name of an optional input that is not given.
    Absent,
}

/// A value of a growing graph.
#[derive(Clone, Debug)]
pub struct Known {
    /// Its name in the file; empty for an optional input that is not given.
    pub name: String,
    /// Its value by reference evaluation.
    pub tensor: Tensor,
    /// How far implementations may be apart; 0 where all must have the same bits.
    pub tolerance: f64,
    /// The same for onnxruntime, which computes some functions of f64 in f32.
    judged_tolerance: f64,
    origin: Origin,
}

impl Known {
    /// An optional input that is not given.
    pub fn absent() -> Known {
        let tensor = Tensor::scalar(0f32);
        Known::exact(String::new(), tensor, Origin::Absent)
    }

    fn exact(name: String, tensor: Tensor, origin: Origin) -> Known {
        Known { name, tensor, tolerance: 0.0, judged_tolerance: 0.0, origin }
    }

    /// Its element type.
    pub fn dtype(&self) -> DType {
        self.tensor.dtype()
    }

    /// Its sizes.
    pub fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    /// Its number of axes.
    pub fn rank(&self) -> usize {
        self.tensor.rank()
    }

    /// Whether every implementation has the same bits of it.
    pub fn is_exact(&self) -> bool {
        self.tolerance == 0.0
    }

    /// Whether all of its numbers lie in a range.
    pub fn lies_in(&self, lo: f64, hi: f64) -> bool {
        self.tensor.to_f64_vec().iter().all(|&number| number >= lo && number <= hi)
    }
}

/// What an operand must be.
#[derive(Clone)]
pub struct Wanted {
    dtypes: Vec<DType>,
    ranks: RangeInclusive<usize>,
    is_exact: bool,
    is_filled: bool,
    within: Option<(f64, f64)>,
}

impl Wanted {
    /// A value of one of these types, of rank 0 to 4.
    pub fn of(dtypes: &[DType]) -> Wanted {
        Wanted { dtypes: dtypes.to_vec(), ranks: 0..=4, is_exact: false, is_filled: false, within: None }
    }

    /// With a rank of these.
    pub fn ranks(mut self, ranks: RangeInclusive<usize>) -> Wanted {
        self.ranks = ranks;
        self
    }

    /// Of which every implementation has the same bits: for functions that jump.
    pub fn exact(mut self) -> Wanted {
        self.is_exact = true;
        self
    }

    /// Without a dim of 0.
    pub fn filled(mut self) -> Wanted {
        self.is_filled = true;
        self
    }

    /// With numbers of a range: for functions that are not defined or steep outside of it.
    pub fn within(mut self, lo: f64, hi: f64) -> Wanted {
        self.within = Some((lo, hi));
        self
    }

    fn admits(&self, known: &Known) -> bool {
        self.dtypes.contains(&known.dtype())
            && self.ranks.contains(&known.rank())
            && (!self.is_exact || known.is_exact())
            && (!self.is_filled || !known.tensor.is_empty())
            && self.within.is_none_or(|(lo, hi)| known.lies_in(lo, hi))
    }
}

/// One node that is to be added.
pub struct Call {
    domain: &'static str,
    operator: String,
    inputs: Vec<Known>,
    attributes: Vec<AttributeProto>,
    outputs: usize,
    rounding: Rounding,
}

/// How the results of a node may differ between implementations that are all right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Not at all.
    None,
    /// By rounding in the coarsest type that is read or made.
    Own,
    /// The same, and onnxruntime computes f64 with numbers of f32.
    JudgedInF32,
}

impl Call {
    /// An operator of ai.onnx with one output, which rounds.
    pub fn of(operator: &str, inputs: &[&Known]) -> Call {
        let inputs = inputs.iter().map(|&known| known.clone()).collect();
        Call {
            domain: "",
            operator: operator.to_string(),
            inputs,
            attributes: vec![],
            outputs: 1,
            rounding: Rounding::Own,
        }
    }

    /// Of com.microsoft.
    pub fn microsoft(mut self) -> Call {
        self.domain = "com.microsoft";
        self
    }

    /// With attributes.
    pub fn with(mut self, attributes: Vec<AttributeProto>) -> Call {
        self.attributes = attributes;
        self
    }

    /// With several outputs.
    pub fn outputs(mut self, outputs: usize) -> Call {
        self.outputs = outputs;
        self
    }

    /// Whose result has the same bits everywhere if its inputs have.
    pub fn exact(mut self) -> Call {
        self.rounding = Rounding::None;
        self
    }

    /// Which onnxruntime computes with numbers of f32 inside, whatever it reads.
    pub fn judged_in_f32(mut self) -> Call {
        self.rounding = Rounding::JudgedInF32;
        self
    }
}

/// A node that reference evaluation refused, though the generator thinks that it is valid.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The operator.
    pub operator: String,
    /// Why.
    pub reason: String,
}

/// A graph with inputs for it.
pub struct Generated {
    /// The graph.
    pub model: ModelProto,
    /// Inputs by name.
    pub inputs: Vec<(String, Tensor)>,
    /// How far implementations may be apart, an output after the other.
    pub tolerances: Vec<f64>,
    /// How far onnxruntime may be apart.
    pub judged_tolerances: Vec<f64>,
    /// Why onnxruntime cannot be the judge, if it cannot.
    pub unjudged: Option<&'static str>,
    /// Nodes that were not added because they were refused.
    pub refusals: Vec<Refusal>,
}

/// A graph that grows.
pub struct Growing {
    /// What decides.
    pub random: Random,
    /// Version of ai.onnx that it is written in.
    pub opset: i64,
    /// Why onnxruntime cannot be the judge: what it draws by itself, or is known to get wrong. The graph is then held against
    /// ourselves alone.
    pub unjudged: Option<&'static str>,
    /// Whether new operands have common types alone where that is possible, so that another runtime can judge the graph.
    is_common: bool,
    values: Vec<Known>,
    nodes: Vec<NodeProto>,
    names: usize,
    refusals: Vec<Refusal>,
}

impl Growing {
    /// A graph of an opset without nodes.
    pub fn new(mut random: Random, opset: i64) -> Growing {
        let (values, nodes, refusals) = (Vec::new(), Vec::new(), Vec::new());
        let is_common = !random.once_in(3);
        Growing { random, opset, unjudged: None, is_common, values, nodes, names: 0, refusals }
    }

    /// One of several words.
    pub fn choose(&mut self, words: &[&'static str]) -> &'static str {
        self.random.pick::<&'static str>(words)
    }

    /// One of several types.
    pub fn pick_type(&mut self, dtypes: &[DType]) -> DType {
        let common: Vec<DType> = dtypes.iter().copied().filter(|dtype| COMMON.contains(dtype)).collect();
        match self.is_common && !common.is_empty() {
            true => *self.random.pick(&common),
            false => *self.random.pick(dtypes),
        }
    }

    /// Nodes so far.
    pub fn node_count(&self) -> usize {
        self.nodes.len()
    }

    /// A value of the graph that is as wanted, or a new one.
    pub fn pick(&mut self, wanted: &Wanted) -> Known {
        let fits: Vec<usize> = (0..self.values.len()).filter(|&at| wanted.admits(&self.values[at])).collect();
        if !fits.is_empty() && !self.random.once_in(5) {
            return self.values[*self.random.pick(&fits)].clone();
        }
        let dtype = self.pick_type(&wanted.dtypes);
        let mut shape = self.shape(wanted.ranks.clone());
        if wanted.is_filled {
            shape.iter_mut().for_each(|size| *size = (*size).max(1));
        }
        let (lo, hi) = wanted.within.unwrap_or((-2.0, 2.0));
        let tensor = self.numbers(dtype, &shape, lo, hi);
        self.new_value(tensor)
    }

    /// A shape of small sizes.
    pub fn shape(&mut self, ranks: RangeInclusive<usize>) -> Vec<usize> {
        let rank = ranks.start() + self.random.below(ranks.end() - ranks.start() + 1);
        let mut shape: Vec<usize> = (0..rank).map(|_| *self.random.pick(&SIZES)).collect();
        while shape.iter().product::<usize>() > ELEMENTS_MAX / 4 {
            let axis = self.random.below(rank);
            shape[axis] = 1;
        }
        shape
    }

    /// A size from 1 on.
    pub fn size(&mut self) -> usize {
        (*self.random.pick(&SIZES)).max(1)
    }

    /// Numbers of a range, floats as multiples of 1/8 so that few of them are equal by accident and all are exact.
    pub fn numbers(&mut self, dtype: DType, shape: &[usize], lo: f64, hi: f64) -> Tensor {
        let count = shape.iter().product();
        let tensor = if dtype.is_float() {
            let (first, last) = ((lo * 8.0).ceil() as i64, (hi.min(lo + 64.0) * 8.0).floor() as i64);
            let span = (last - first + 1).max(1) as usize;
            let numbers: Vec<f64> = (0..count).map(|_| (first + self.random.below(span) as i64) as f64 / 8.0).collect();
            Tensor::from_f64(dtype, shape, &numbers, true)
        } else {
            let (first, span) = match dtype {
                DType::Bool => (0, 2),
                _ if UNSIGNED.contains(&dtype) => {
                    (lo.max(0.0) as i64, (hi.min(lo.max(0.0) + 12.0) - lo.max(0.0)) as usize + 1)
                }
                _ => ((4.0 * lo.max(-2.0)) as i64, (4.0 * (hi.min(2.0) - lo.max(-2.0))).max(0.0) as usize + 1),
            };
            let numbers: Vec<i128> = (0..count).map(|_| i128::from(first) + self.random.below(span) as i128).collect();
            Tensor::from_i128(dtype, shape, &numbers)
        };
        tensor.expect("as many elements as the shape has")
    }

    /// A new operand: an input of the graph, or a constant.
    fn new_value(&mut self, tensor: Tensor) -> Known {
        let inputs = self.values.iter().filter(|known| known.origin == Origin::Input).count();
        let is_input = inputs == 0 || (inputs < INPUTS_MAX && self.random.once_in(2));
        let (name, origin) = match is_input {
            true => (format!("x{inputs}"), Origin::Input),
            false => (self.fresh(), Origin::Constant),
        };
        let known = Known::exact(name, tensor, origin);
        self.values.push(known.clone());
        known
    }

    /// A constant with a value of its own.
    pub fn constant_of(&mut self, tensor: Tensor) -> Known {
        let known = Known::exact(self.fresh(), tensor, Origin::Constant);
        self.values.push(known.clone());
        known
    }

    /// A constant or input of random numbers.
    pub fn operand(&mut self, dtype: DType, shape: &[usize]) -> Known {
        self.operand_within(dtype, shape, -2.0, 2.0)
    }

    /// A constant or input of random numbers of a range.
    pub fn operand_within(&mut self, dtype: DType, shape: &[usize], lo: f64, hi: f64) -> Known {
        let tensor = self.numbers(dtype, shape, lo, hi);
        self.new_value(tensor)
    }

    /// A constant of random numbers of a range.
    pub fn constant_within(&mut self, dtype: DType, shape: &[usize], lo: f64, hi: f64) -> Known {
        let tensor = self.numbers(dtype, shape, lo, hi);
        self.constant_of(tensor)
    }

    /// A constant vector of i64.
    pub fn ints(&mut self, ints: &[i64]) -> Known {
        self.constant_of(Tensor::from_vec([ints.len()], ints.to_vec()).expect("as many elements as the shape has"))
    }

    /// A constant vector of sizes.
    pub fn sizes(&mut self, sizes: &[usize]) -> Known {
        self.ints(&sizes.iter().map(|&size| size as i64).collect::<Vec<i64>>())
    }

    /// A constant scalar.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Known {
        self.constant_of(Tensor::from_f64(dtype, [], &[value], true).expect("one element"))
    }

    /// An operand that broadcasts with a shape: of the graph where one fits, else new.
    pub fn broadcast_operand(&mut self, dtype: DType, shape: &[usize], is_exact: bool) -> Known {
        let fits: Vec<usize> = (0..self.values.len())
            .filter(|&at| {
                let known = &self.values[at];
                known.dtype() == dtype && (known.is_exact() || !is_exact) && broadcasts(known.shape(), shape)
            })
            .collect();
        if !fits.is_empty() && self.random.once_in(2) {
            return self.values[*self.random.pick(&fits)].clone();
        }
        let from = self.random.below(shape.len() + 1);
        let sizes = shape[from..].iter();
        let shape: Vec<usize> = sizes.map(|&size| if self.random.once_in(3) { 1 } else { size }).collect();
        self.operand(dtype, &shape)
    }

    /// A name that nothing has.
    pub fn fresh(&mut self) -> String {
        self.names += 1;
        format!("v{}", self.names)
    }

    /// Adds a node with one output.
    pub fn add(&mut self, call: Call) -> Option<Known> {
        self.add_all(call)?.into_iter().next()
    }

    /// Adds a node, unless its results are too large to be compared or it is refused.
    pub fn add_all(&mut self, call: Call) -> Option<Vec<Known>> {
        let outputs: Vec<String> = (0..call.outputs).map(|_| self.fresh()).collect();
        let mut input: Vec<String> = call.inputs.iter().map(|known| known.name.clone()).collect();
        while input.last().is_some_and(String::is_empty) {
            input.pop();
        }
        let node = NodeProto {
            domain: call.domain.to_string(),
            op_type: call.operator,
            input,
            output: outputs.clone(),
            attribute: call.attributes,
            ..NodeProto::default()
        };
        self.add_nodes(vec![node], &outputs, call.rounding)
    }

    /// Adds nodes that make sense only together, and what they make for others.
    pub fn add_nodes(&mut self, nodes: Vec<NodeProto>, outputs: &[String], rounding: Rounding) -> Option<Vec<Known>> {
        let names = names_read(&nodes);
        let read: Vec<Known> = self.values.iter().filter(|known| names.contains(&known.name)).cloned().collect();
        let tensors = match self.evaluate(&nodes, &read, outputs) {
            Ok(tensors) => tensors,
            Err(error) => {
                let operator = nodes.last().map_or_else(String::new, |node| node.op_type.clone());
                self.refusals.push(Refusal { operator, reason: format!("{error:#}") });
                return None;
            }
        };
        if !tensors.iter().all(is_small) {
            return None;
        }
        let largest = |tolerance: fn(&Known) -> f64| read.iter().map(tolerance).fold(0.0, f64::max);
        let (read_tolerance, read_judged) = (largest(|known| known.tolerance), largest(|known| known.judged_tolerance));
        let dtypes = read.iter().map(Known::dtype).chain(tensors.iter().map(Tensor::dtype));
        let coarsest = dtypes.map(tolerance_of).fold(0.0, f64::max);
        let (own, own_judged) = match rounding {
            Rounding::None => (0.0, 0.0),
            Rounding::Own => (coarsest, coarsest),
            Rounding::JudgedInF32 => (coarsest, coarsest.max(tolerance_of(DType::F32))),
        };
        self.nodes.extend(nodes);
        let known = outputs.iter().zip(tensors).map(|(name, tensor)| {
            let (own, own_judged) = if tensor.dtype().is_float() { (own, own_judged) } else { (0.0, 0.0) };
            let (tolerance, judged_tolerance) = (own.max(read_tolerance), own_judged.max(read_judged));
            Known { name: name.clone(), tensor, tolerance, judged_tolerance, origin: Origin::Node }
        });
        let known: Vec<Known> = known.collect();
        self.values.extend(known.clone());
        Some(known)
    }

    fn evaluate(&self, nodes: &[NodeProto], read: &[Known], outputs: &[String]) -> Result<Vec<Tensor>> {
        let mut graph = GraphProto { name: "one".to_string(), node: nodes.to_vec(), ..GraphProto::default() };
        let mut inputs = Vec::new();
        for known in read {
            match known.origin {
                Origin::Constant => graph.initializer.push(tensor_message(&known.name, &known.tensor)),
                _ => {
                    graph.input.push(declared_as(&known.name, &known.tensor));
                    inputs.push((known.name.clone(), known.tensor.clone()));
                }
            }
        }
        graph.output = outputs.iter().map(|name| declared(name, DType::F32, None)).collect();
        let model = Model::from_bytes(self.model(graph).encode_to_vec().into())?;
        let runner = Runner::new(model, RunnerOptions { threads: 1, ..RunnerOptions::default() })?;
        let found = runner.run_reference(&inputs).context("reference")?;
        Ok(found.into_iter().map(|(_, tensor)| tensor).collect())
    }

    fn model(&self, graph: GraphProto) -> ModelProto {
        let imported = |domain: &str, version| OperatorSetIdProto { domain: domain.to_string(), version };
        let opset_import = vec![imported("", self.opset), imported("com.microsoft", 1)];
        ModelProto { ir_version: IR_VERSION, opset_import, graph: Some(graph), ..ModelProto::default() }
    }

    /// The graph, with dims declared as numbers or by names. Values that nothing reads are outputs.
    pub fn finish(mut self) -> Generated {
        if self.nodes.is_empty() {
            let x = self.pick(&Wanted::of(FLOATS));
            self.add(Call::of("Identity", &[&x]).exact());
        }
        let names = names_read(&self.nodes);
        let is_symbolic = self.random.once_in(3);
        let sizes = |known: &Known| {
            let sizes = known.shape().iter();
            let named = |&size: &usize| {
                if is_symbolic && size > 1 { Size::Named(format!("n{size}")) } else { Size::Fixed(size) }
            };
            Some(sizes.map(named).collect())
        };
        let mut graph = GraphProto { name: "random".to_string(), ..GraphProto::default() };
        let (mut inputs, mut tolerances, mut judged_tolerances) = (Vec::new(), Vec::new(), Vec::new());
        for known in &self.values {
            match known.origin {
                Origin::Input => {
                    graph.input.push(declared(&known.name, known.dtype(), sizes(known)));
                    inputs.push((known.name.clone(), known.tensor.clone()));
                }
                Origin::Constant if names.contains(&known.name) => {
                    graph.initializer.push(tensor_message(&known.name, &known.tensor));
                }
                Origin::Node if !names.contains(&known.name) => {
                    let sizes = if is_symbolic { None } else { sizes(known) };
                    graph.output.push(declared(&known.name, known.dtype(), sizes));
                    tolerances.push(known.tolerance);
                    judged_tolerances.push(known.judged_tolerance);
                }
                Origin::Constant | Origin::Node | Origin::Absent => {}
            }
        }
        graph.node = std::mem::take(&mut self.nodes);
        let (model, unjudged, refusals) = (self.model(graph), self.unjudged, self.refusals);
        Generated { model, inputs, tolerances, judged_tolerances, unjudged, refusals }
    }
}

/// Whether a shape becomes another by broadcasting.
fn broadcasts(own: &[usize], shape: &[usize]) -> bool {
    own.len() <= shape.len() && own.iter().rev().zip(shape.iter().rev()).all(|(&own, &size)| own == 1 || own == size)
}

/// Names that nodes and their bodies read.
fn names_read(nodes: &[NodeProto]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for node in nodes {
        names.extend(node.input.iter().filter(|name| !name.is_empty()).cloned());
        for graph in node.attribute.iter().filter_map(|attribute| attribute.g.as_ref()) {
            names.extend(names_read(&graph.node));
            names.extend(graph.output.iter().map(|output| output.name.clone()));
        }
    }
    names
}

fn is_small(tensor: &Tensor) -> bool {
    let limit = if tensor.dtype().is_float() { MAGNITUDE_MAX } else { INTEGER_MAX };
    tensor.len() <= ELEMENTS_MAX && tensor.to_f64_vec().iter().all(|number| number.abs() <= limit)
}

/// How far two computations in this type may be apart after some nodes, over all elements of an output.
pub fn tolerance_of(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F32 => 2e-4,
        DType::F16 => 2e-2,
        DType::BF16 => 1e-1,
        _ => 0.0,
    }
}
