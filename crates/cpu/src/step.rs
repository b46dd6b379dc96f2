//! One node on its way to a kernel call. A step is written into the Program as the text of a graph of that one node, so
//! that compiling and loading make the same kernel from the same words.

use std::borrow::Cow;

use precast_ir::attr::NoConstants;
use precast_ir::graph::GraphError;
use precast_ir::{Definition, Graph, Node, Op, text};
use precast_kernels::arena::{self, AlignedBytes, Args};
use precast_kernels::arithmetic::Arithmetic;
use precast_kernels::conv::Liberty;
use precast_kernels::isa::{Exec, Isa};
use precast_passes::{ActivationPrecision, Numerics, WeightPrecision};
use precast_tensor::{DType, Digest, Element, Tensor, TensorError, Type};

/// What a step does when it runs.
pub type Run = Box<dyn Fn(&mut Args<'_>, Exec<'_>) -> Result<(), String> + Send + Sync>;

/// Constants of this many elements or fewer are part of the step's text; larger ones are buffers.
const INLINE_ELEMENTS_MAX: usize = 16;

/// Names of the buffers of a step's graph: constants and values.
const CONSTANT_PREFIX: &str = "c";
const VALUE_PREFIX: &str = "x";

/// Starts the line before the graph that says which tactic was chosen.
const TACTIC_WORD: &str = "tactic";

/// The way a step is computed, where there are several: chosen while compiling, only read while loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tactic {
    /// Its name.
    pub name: String,
    /// Why it was chosen, for people.
    pub why: String,
}

impl Tactic {
    /// The tactic in the text of a step, and the rest of the text.
    fn split(text: &str) -> (Option<Tactic>, &str) {
        let parse = || {
            let (line, rest) = text.split_once('\n')?;
            let (name, why) = line.strip_prefix(TACTIC_WORD)?.strip_prefix(' ')?.split_once(' ')?;
            Some((Tactic { name: name.to_string(), why: why.to_string() }, rest))
        };
        parse().map_or((None, text), |(tactic, rest)| (Some(tactic), rest))
    }

    /// Why the tactic of a step was chosen, from the step's parameters in a Program.
    pub fn why_of(parameters: &[u8]) -> Option<String> {
        Some(Tactic::split(std::str::from_utf8(parameters).ok()?).0?.why)
    }
}

/// A graph of one node: what a kernel is made from.
pub struct StepNode {
    graph: Graph,
    /// Values of the large constants, by position of the node's input; present while compiling only.
    constants: Vec<Option<Tensor>>,
    /// The way it is computed, where there are several and one was chosen.
    pub tactic: Option<Tactic>,
}

impl StepNode {
    /// Takes a node out of its graph.
    pub fn new(graph: &Graph, node: &Node) -> Result<StepNode, GraphError> {
        let mut alone = Graph::new("");
        let mut constants = Vec::new();
        let mut inputs = Vec::new();
        for (position, &input) in node.inputs.iter().enumerate() {
            let tensor = graph.constant(input);
            inputs.push(match tensor {
                Some(tensor) if tensor.len() <= INLINE_ELEMENTS_MAX => alone.add_constant(tensor.clone()),
                Some(tensor) => alone.add_input(format!("{CONSTANT_PREFIX}{position}"), tensor.type_()),
                None => alone.add_input(format!("{VALUE_PREFIX}{position}"), graph.ty(input).clone()),
            });
            constants.push(tensor.cloned());
        }
        let outputs = alone.add_node(node.op.clone(), &inputs, &Default::default())?;
        for (position, output) in outputs.into_iter().enumerate() {
            alone.add_output(format!("y{position}"), output);
        }
        Ok(StepNode { graph: alone, constants, tactic: None })
    }

    /// The text that `parse` reads back.
    pub fn print(&self) -> String {
        let graph = text::print(&self.graph);
        match &self.tactic {
            Some(Tactic { name, why }) => format!("{TACTIC_WORD} {name} {why}\n{graph}"),
            None => graph,
        }
    }

    /// A step from its text; its large constants are not known.
    pub fn parse(text: &str) -> Result<StepNode, String> {
        let (tactic, text) = Tactic::split(text);
        let graph = text::parse(text, &NoConstants).map_err(|error| error.to_string())?;
        let [node] = graph.nodes() else {
            return Err(format!("a step has one node; {} were found", graph.nodes().len()));
        };
        let is_bounded = |ty: &Type| ty.size_bytes().is_some_and(|bytes| isize::try_from(bytes).is_ok());
        if let Some(value) = graph.values().iter().find(|value| !is_bounded(&value.ty)) {
            return Err(format!("{} has no size in bytes", value.ty));
        }
        let constants = node.inputs.iter().map(|&input| graph.constant(input).cloned()).collect();
        Ok(StepNode { graph, constants, tactic })
    }

    /// What it computes.
    pub fn op(&self) -> &Op {
        &self.node().op
    }

    /// How many operands it has.
    pub fn input_count(&self) -> usize {
        self.node().inputs.len()
    }

    /// How many results it has.
    pub fn output_count(&self) -> usize {
        self.node().outputs.len()
    }

    /// Type of an operand.
    pub fn ty(&self, input: usize) -> &Type {
        self.graph.ty(self.node().inputs[input])
    }

    /// Element type of an operand.
    pub fn dtype(&self, input: usize) -> DType {
        self.ty(input).dtype
    }

    /// Sizes of an operand.
    pub fn shape(&self, input: usize) -> Vec<usize> {
        sizes(self.ty(input))
    }

    /// Type of a result.
    pub fn output_ty(&self, output: usize) -> &Type {
        self.graph.ty(self.node().outputs[output])
    }

    /// Sizes of a result.
    pub fn output_shape(&self, output: usize) -> Vec<usize> {
        sizes(self.output_ty(output))
    }

    /// Whether an operand is a constant, large or small.
    pub fn is_constant(&self, input: usize) -> bool {
        match &self.graph.value(self.node().inputs[input]).definition {
            Definition::Constant(_) => true,
            Definition::Input(name) => name.starts_with(CONSTANT_PREFIX),
            Definition::Node { .. } => false,
        }
    }

    /// A constant that is part of the step's text.
    pub fn inline(&self, input: usize) -> Option<&Tensor> {
        self.graph.constant(self.node().inputs[input])
    }

    /// Any constant, while compiling; an inline one, while loading.
    pub fn constant(&self, input: usize) -> Option<&Tensor> {
        self.constants.get(input)?.as_ref()
    }

    fn node(&self) -> &Node {
        &self.graph.nodes()[0]
    }
}

fn sizes(ty: &Type) -> Vec<usize> {
    ty.shape().expect("the target compiles only graphs whose dims are numbers")
}

/// A buffer that a step reads.
pub enum Read {
    /// An operand of the node.
    Input(usize),
    /// A packed form of a constant: known while compiling, already in the store while loading.
    Packed {
        /// Its value, while compiling.
        value: Option<Packing>,
        /// Its size, which follows from the step's Types.
        bytes: usize,
    },
}

/// The value of a packed constant, while compiling.
pub enum Packing {
    /// It is there.
    Made(Tensor),
    /// It is made unless another Bucket has made it already.
    Form(PackedForm),
}

/// A packed constant that many Buckets share.
pub struct PackedForm {
    /// Of all that its bytes depend on.
    pub name: Digest,
    /// Makes it.
    pub make: Box<dyn FnOnce() -> Result<Tensor, String>>,
}

impl Read {
    /// A packed constant of `len` elements; while compiling, `fill` writes it over zeros.
    pub fn packed<T: Element + arena::Element>(
        len: usize,
        fill: Option<impl FnOnce(&mut [T])>,
    ) -> Result<Read, String> {
        let value = fill.map(|fill| packed_tensor(len, fill).map(Packing::Made)).transpose()?;
        Ok(Read::Packed { value, bytes: len * size_of::<T>() })
    }

    /// As `packed`, of large constants whose packed form no dim of a Bucket changes: `form` says in words how they are packed, and
    /// each form of them is made once. Without constants, while loading, nothing is made.
    pub fn packed_once<T: Element + arena::Element, const COUNT: usize>(
        len: usize,
        form: impl std::fmt::Display,
        constants: Option<[Tensor; COUNT]>,
        fill: impl FnOnce([Tensor; COUNT], &mut [T]) + 'static,
    ) -> Read {
        let packing = |constants: [Tensor; COUNT]| {
            let digests: Vec<String> = constants.iter().map(|constant| constant.digest().to_string()).collect();
            let name = Digest::of_bytes(format!("{form} {len} {} {}", T::DTYPE, digests.join(" ")).as_bytes());
            let make = move || packed_tensor(len, |packed: &mut [T]| fill(constants, packed));
            Packing::Form(PackedForm { name, make: Box::new(make) })
        };
        Read::Packed { value: constants.map(packing), bytes: len * size_of::<T>() }
    }
}

/// Aligned and in place, so that the device that loads it on this machine need not copy it.
fn packed_tensor<T: Element + arena::Element>(len: usize, fill: impl FnOnce(&mut [T])) -> Result<Tensor, String> {
    let tensor = Tensor::new(T::DTYPE, [len], AlignedBytes::filled(len, fill).into_bytes());
    tensor.map_err(|error: TensorError| error.to_string())
}

/// The elements of an f32 constant where they are, or a copy where they are not aligned.
pub fn f32_elements(bytes: &[u8]) -> Cow<'_, [f32]> {
    match arena::view(bytes) {
        Some(elements) => Cow::Borrowed(elements),
        None => bytes.as_chunks().0.iter().map(|&element| f32::from_le_bytes(element)).collect(),
    }
}

/// A kernel and the buffers it wants.
pub struct Lowered {
    /// Name of the kernel, for people.
    pub kernel: String,
    /// Buffers in the order in which `run` reads them.
    pub reads: Vec<Read>,
    /// Bytes of scratch, written after the results; 0 for none.
    pub scratch_bytes: usize,
    /// What it does.
    pub run: Run,
}

impl Lowered {
    /// A kernel that reads all operands as they are and needs no scratch.
    pub fn plain(
        kernel: impl Into<String>,
        step: &StepNode,
        run: impl Fn(&mut Args<'_>, Exec<'_>) -> Result<(), String> + Send + Sync + 'static,
    ) -> Lowered {
        let reads = (0..step.input_count()).map(Read::Input).collect();
        Lowered { kernel: kernel.into(), reads, scratch_bytes: 0, run: Box::new(run) }
    }
}

/// What kernels are made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Instruction set.
    pub isa: Isa,
    /// Threads of a run.
    pub threads: usize,
    /// Whether kernels must round as the ops are written: no Winograd.
    pub is_strict: bool,
    /// Whether constant f32 weights are held and multiplied as bf16.
    pub is_bf16: bool,
    /// Whether rows are quantised to 8 bits before products with weights of few bits that have a scale for each block.
    pub quantises_rows: bool,
}

impl Machine {
    /// The machine of a target whose numerics are these.
    pub fn new(isa: Isa, threads: usize, numerics: &Numerics) -> Machine {
        Machine {
            isa,
            threads,
            is_strict: numerics.is_strict,
            is_bf16: numerics.weights == WeightPrecision::Bf16,
            quantises_rows: numerics.activations == ActivationPrecision::Int8,
        }
    }

    /// What tactics may do to the values.
    pub fn liberty(self) -> Liberty {
        match (self.is_strict, self.is_bf16) {
            (true, _) => Liberty::Strict,
            (false, false) => Liberty::Rounding,
            (false, true) => Liberty::Bf16,
        }
    }

    /// How products with constant weights multiply.
    pub fn arithmetic(self) -> Arithmetic {
        if self.is_bf16 { Arithmetic::Bf16 } else { Arithmetic::F32 }
    }
}
