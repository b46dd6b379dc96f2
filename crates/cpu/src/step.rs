//! One node on its way to a kernel call. A step is written into the Program as the text of a graph of that one node, so
//! that compiling and loading make the same kernel from the same words.

use precast_ir::attr::NoConstants;
use precast_ir::graph::GraphError;
use precast_ir::{Definition, Graph, Node, Op, text};
use precast_kernels::arena::{AlignedBytes, Args};
use precast_kernels::isa::{Exec, Isa};
use precast_passes::{Numerics, WeightPrecision};
use precast_tensor::{DType, Element, Tensor, TensorError, Type};

/// What a step does when it runs.
pub type Run = Box<dyn Fn(&mut Args<'_>, Exec<'_>) -> Result<(), String> + Send + Sync>;

/// Constants of this many elements or fewer are part of the step's text; larger ones are buffers.
const INLINE_ELEMENTS_MAX: usize = 16;

/// Names of the buffers of a step's graph: constants and values.
const CONSTANT_PREFIX: &str = "c";
const VALUE_PREFIX: &str = "x";

/// A graph of one node: what a kernel is made from.
pub struct StepNode {
    graph: Graph,
    /// Values of the large constants, by position of the node's input; present while compiling only.
    constants: Vec<Option<Tensor>>,
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
        Ok(StepNode { graph: alone, constants })
    }

    /// The text that `parse` reads back.
    pub fn print(&self) -> String {
        text::print(&self.graph)
    }

    /// A step from its text; its large constants are not known.
    pub fn parse(text: &str) -> Result<StepNode, String> {
        let graph = text::parse(text, &NoConstants).map_err(|error| error.to_string())?;
        let [node] = graph.nodes() else {
            return Err(format!("a step has one node; {} were found", graph.nodes().len()));
        };
        let is_bounded = |ty: &Type| ty.size_bytes().is_some_and(|bytes| isize::try_from(bytes).is_ok());
        if let Some(value) = graph.values().iter().find(|value| !is_bounded(&value.ty)) {
            return Err(format!("{} has no size in bytes", value.ty));
        }
        let constants = node.inputs.iter().map(|&input| graph.constant(input).cloned()).collect();
        Ok(StepNode { graph, constants })
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
        value: Option<Tensor>,
        /// Its size, which follows from the step's Types.
        bytes: usize,
    },
}

impl Read {
    /// A packed constant of `len` elements, with its value while compiling.
    pub fn packed<T: Element>(len: usize, value: Option<Vec<T>>) -> Result<Read, String> {
        // Aligned here, so that the device that loads it on this machine need not copy it.
        let tensor = |elements: Vec<T>| {
            let tensor = Tensor::from_vec([len], elements)?;
            let aligned = AlignedBytes::from_bytes(tensor.bytes());
            drop(tensor);
            Tensor::new(T::DTYPE, [len], aligned.into_bytes())
        };
        let value = value.map(tensor).transpose();
        Ok(Read::Packed { value: value.map_err(|error: TensorError| error.to_string())?, bytes: len * size_of::<T>() })
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
}

impl Machine {
    /// The machine of a target whose numerics are these.
    pub fn new(isa: Isa, threads: usize, numerics: &Numerics) -> Machine {
        Machine { isa, threads, is_strict: numerics.is_strict, is_bf16: numerics.weights == WeightPrecision::Bf16 }
    }
}
