//! What a step of a GPU Program holds: launches of compiled kernels, or a node that the host evaluates.

use precast_ir::attr::NoConstants;
use precast_ir::graph::GraphError;
use precast_ir::{Graph, Node, text};
use serde::{Deserialize, Serialize};

use crate::kernel::Operand;

/// Name of the kernels that are no kernels: the host evaluates the node by its meaning.
pub const HOST: &str = "host";

/// The parameters of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepCode {
    /// Launches in order.
    Launches(Vec<StepLaunch>),
    /// The text of a graph of one node.
    Host(String),
}

/// One launch of a compiled kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepLaunch {
    /// Position of the machine code among the Program's constants.
    pub code: u32,
    /// Name of the kernel in it.
    pub entry: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub block: [u32; 3],
    /// Dynamic shared memory.
    pub shared_bytes: u32,
    /// Buffers, in the order of the kernel's parameters.
    pub operands: Vec<StepOperand>,
    /// Further parameters.
    pub scalars: Vec<i64>,
}

/// A buffer of a launch, among the slots of its step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum StepOperand {
    /// A slot that the step reads.
    Read(u32),
    /// A slot that the step writes.
    Write(u32),
}

impl StepOperand {
    /// An operand of a lowered node as a slot of its step, in which packed constants follow the operands and scratch
    /// memory follows the results.
    pub fn of(operand: Operand, inputs: usize, outputs: usize) -> StepOperand {
        match operand {
            Operand::Read(position) => StepOperand::Read(position),
            Operand::Packed(position) => StepOperand::Read(inputs as u32 + position),
            Operand::Write(position) => StepOperand::Write(position),
            Operand::Scratch(position) => StepOperand::Write(outputs as u32 + position),
        }
    }
}

impl StepCode {
    /// The bytes that `decode` reads back.
    pub fn encode(&self) -> Result<Vec<u8>, String> {
        postcard::to_allocvec(self).map_err(|error| error.to_string())
    }

    /// What a step's parameters say.
    pub fn decode(parameters: &[u8]) -> Result<StepCode, String> {
        postcard::from_bytes(parameters).map_err(|error| error.to_string())
    }

    /// A node for the host.
    pub fn host(graph: &Graph, node: &Node) -> Result<StepCode, GraphError> {
        let mut alone = Graph::new("");
        let operands = node.inputs.iter().enumerate();
        let inputs: Vec<_> = operands
            .map(|(position, &input)| alone.add_input(format!("x{position}"), graph.ty(input).clone()))
            .collect();
        let outputs = alone.add_node(node.op.clone(), &inputs, &Default::default())?;
        for (position, output) in outputs.into_iter().enumerate() {
            alone.add_output(format!("y{position}"), output);
        }
        Ok(StepCode::Host(text::print(&alone)))
    }

    /// The graph of a node for the host.
    pub fn host_graph(text: &str) -> Result<Graph, String> {
        text::parse(text, &NoConstants).map_err(|error| error.to_string())
    }
}
