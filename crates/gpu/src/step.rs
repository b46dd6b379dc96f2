//! What a step of a GPU Program holds: launches of compiled kernels, or a node that the host evaluates.

use precast_ir::attr::NoConstants;
use precast_ir::graph::GraphError;
use precast_ir::op::Transpose;
use precast_ir::{Graph, Node, text};
use precast_tensor::{Dim, Type};
use serde::{Deserialize, Serialize};

use crate::kernel::Operand;
use crate::site::Layouts;

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
    /// By operand: what the rows of a caller's buffer with fewer of them must be multiples of; 0 where it must be whole.
    pub row_bytes: Vec<u64>,
    /// It may start before the launch before it has ended, for which it waits itself.
    pub is_overlapping: bool,
    /// Its blocks along the third axis of the grid are a cluster.
    pub is_clustered: bool,
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

    /// A node for the host, with transposes around it where its values do not lie in row-major order.
    pub fn host(graph: &Graph, node: &Node, layouts: &Layouts) -> Result<StepCode, GraphError> {
        let mut alone = Graph::new("");
        let mut inputs = Vec::new();
        for (position, &input) in node.inputs.iter().enumerate() {
            let ty = graph.ty(input).clone();
            let name = format!("x{position}");
            if !layouts.is_channels_last(input) {
                inputs.push(alone.add_input(name, ty));
                continue;
            }
            let axes = channels_last_axes(ty.dims.len());
            let dims: Vec<Dim> = axes.iter().map(|&axis| ty.dims[axis].clone()).collect();
            let stored = alone.add_input(name, Type::new(ty.dtype, dims));
            let mut perm = vec![0; axes.len()];
            axes.iter().enumerate().for_each(|(place, &axis)| perm[axis] = place);
            inputs.push(alone.add(Transpose { perm }, &[stored], &Default::default())?);
        }
        let outputs = alone.add_node(node.op.clone(), &inputs, &Default::default())?;
        for (position, (mut output, &old)) in outputs.into_iter().zip(&node.outputs).enumerate() {
            if layouts.is_channels_last(old) {
                let perm = channels_last_axes(graph.ty(old).dims.len());
                output = alone.add(Transpose { perm }, &[output], &Default::default())?;
            }
            alone.add_output(format!("y{position}"), output);
        }
        Ok(StepCode::Host(text::print(&alone)))
    }

    /// The graph of a node for the host.
    pub fn host_graph(text: &str) -> Result<Graph, String> {
        text::parse(text, &NoConstants).map_err(|error| error.to_string())
    }
}

/// Axes in the order in which they lie in memory when the channels are innermost.
fn channels_last_axes(rank: usize) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..rank).filter(|&axis| axis != 1).collect();
    axes.push(1);
    axes
}
