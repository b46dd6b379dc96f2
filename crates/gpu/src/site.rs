//! A node in its graph, as the lowering of its family sees it.

use precast_ir::{Graph, Node, Op, ValueId};
use precast_tensor::{DType, Tensor};

use crate::kernel::Arch;

/// In which order the elements of each value lie in memory.
#[derive(Clone, Debug, Default)]
pub struct Layouts {
    /// By value: whether axis 1 is the innermost in memory. Values beyond the list are in row-major order.
    channels_last: Vec<bool>,
}

impl Layouts {
    /// Puts axis 1 of a value innermost.
    pub fn set_channels_last(&mut self, value: ValueId) {
        let at = value.0 as usize;
        if self.channels_last.len() <= at {
            self.channels_last.resize(at + 1, false);
        }
        self.channels_last[at] = true;
    }

    /// Whether axis 1 of a value is innermost.
    pub fn is_channels_last(&self, value: ValueId) -> bool {
        self.channels_last.get(value.0 as usize).copied().unwrap_or(false)
    }
}

/// Strides in elements of a dense tensor, in row-major order or with axis 1 innermost.
pub fn dense_strides(shape: &[usize], is_channels_last: bool) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if is_channels_last && shape.len() > 2 {
        order.remove(1);
        order.push(1);
    }
    let mut stride = 1;
    for &axis in order.iter().rev() {
        strides[axis] = stride;
        stride *= shape[axis];
    }
    strides
}

/// A node whose dims are all numbers, and what it is lowered for.
#[derive(Clone, Copy)]
pub struct Site<'a> {
    /// The graph it is in.
    pub graph: &'a Graph,
    /// The node.
    pub node: &'a Node,
    /// What kernels are made for.
    pub arch: &'a Arch,
    /// Where elements lie.
    pub layouts: &'a Layouts,
}

impl<'a> Site<'a> {
    /// What it computes.
    pub fn op(&self) -> &'a Op {
        &self.node.op
    }

    /// Sizes of an operand.
    pub fn shape(&self, input: usize) -> Vec<usize> {
        self.graph.ty(self.node.inputs[input]).shape().expect("dims are numbers when a node is lowered")
    }

    /// Element type of an operand.
    pub fn dtype(&self, input: usize) -> DType {
        self.graph.ty(self.node.inputs[input]).dtype
    }

    /// Sizes of a result.
    pub fn out_shape(&self, output: usize) -> Vec<usize> {
        self.graph.ty(self.node.outputs[output]).shape().expect("dims are numbers when a node is lowered")
    }

    /// Element type of a result.
    pub fn out_dtype(&self, output: usize) -> DType {
        self.graph.ty(self.node.outputs[output]).dtype
    }

    /// Value of an operand that is a constant.
    pub fn constant(&self, input: usize) -> Option<&'a Tensor> {
        self.graph.constant(self.node.inputs[input])
    }

    /// Strides of an operand, in elements.
    pub fn strides(&self, input: usize) -> Vec<usize> {
        dense_strides(&self.shape(input), self.layouts.is_channels_last(self.node.inputs[input]))
    }

    /// Strides of a result, in elements.
    pub fn out_strides(&self, output: usize) -> Vec<usize> {
        dense_strides(&self.out_shape(output), self.layouts.is_channels_last(self.node.outputs[output]))
    }
}
