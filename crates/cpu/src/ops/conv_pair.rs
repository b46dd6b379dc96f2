//! A 1×1 convolution and the depthwise one that reads it, in one fused body (`passes/fuse_depthwise.rs`).

use precast_ir::{Graph, Node, Op};
use precast_kernels::conv_pair::{ConvPair, PairOperands};
use precast_kernels::epilogue::{self, Bias};
use precast_tensor::Tensor;

use crate::ops::conv::inner_shape;
use crate::ops::epilogue::Epilogue;
use crate::step::{Lowered, Machine, Read, StepNode, f32_elements};

/// One convolution of a body: its node and what follows it, by positions of the step's inputs.
struct Half {
    filter: usize,
    bias: Option<usize>,
    epilogue: Epilogue,
}

impl Half {
    fn new(body: &Graph, node: &Node, epilogue: Epilogue) -> Option<Half> {
        let position = |value| body.inputs().iter().position(|&input| input == value);
        let bias = node.inputs.get(2).map(|&bias| position(bias).ok_or(())).transpose().ok()?;
        let is_covered = epilogue.bias.is_none() && epilogue.scale.is_none();
        Some(Half { filter: position(node.inputs[1])?, bias, epilogue }).filter(|_| is_covered)
    }
}

/// The kernel of a body of two convolutions.
pub fn lower(step: &StepNode, body: &Graph, machine: Machine) -> Result<Option<Lowered>, String> {
    let Some((pair, first, second)) = read(body) else { return Ok(None) };
    let Some(ends) = first.epilogue.constant_part(step).zip(second.epilogue.constant_part(step)) else {
        return Ok(None);
    };
    let pack = |filter: &Tensor| {
        let filter = filter.bytes().clone();
        move |packed: &mut [f32]| pair.pack_first_into(machine.isa, &f32_elements(&filter), packed)
    };
    let packed = Read::packed(pair.packed_first_len(), step.constant(first.filter).map(pack))?;
    let mut reads = vec![Read::Input(0), packed, Read::Input(second.filter)];
    let mut push = |input: Option<usize>| {
        input.map(|input| {
            reads.push(Read::Input(input));
            reads.len() - 1
        })
    };
    let (biases, residual) = ([first.bias, second.bias].map(&mut push), push(second.epilogue.residual));
    let scratch = pair.scratch_len(machine.isa, machine.threads) * size_of::<f32>();
    Ok(Some(Lowered {
        kernel: format!("conv.1x1{}.depthwise{}", first.epilogue.suffix(), second.epilogue.suffix()),
        reads,
        scratch_bytes: scratch,
        run: Box::new(move |args, exec| {
            let (x, first_filter, second_filter) = (args.read::<f32>(0), args.read::<f32>(1), args.read::<f32>(2));
            let [first_bias, second_bias] =
                biases.map(|bias| bias.map_or(Bias::None, |read| Bias::Rows(args.read(read))));
            let residual = residual.map(|read| args.read::<f32>(read));
            let y = args.write::<f32>(0);
            let scratch: &mut [f32] = if scratch > 0 { args.write(1) } else { &mut [] };
            let first_epilogue = epilogue::Epilogue { bias: first_bias, ..ends.0 };
            let second_epilogue = epilogue::Epilogue { bias: second_bias, residual, ..ends.1 };
            let operands = PairOperands { first_filter, first_epilogue, second_filter, second_epilogue };
            pair.run(exec, x, &operands, scratch, y);
            Ok(())
        }),
    }))
}

/// The two convolutions of a body.
fn read(body: &Graph) -> Option<(ConvPair, Half, Half)> {
    let (first, rest) = body.nodes().split_first()?;
    let at = rest.iter().position(|node| matches!(node.op, Op::Conv(_)))?;
    let (between, second) = (&rest[..at], &rest[at]);
    let (Op::Conv(first_op), Op::Conv(second_op)) = (&first.op, &second.op) else { return None };
    let (first_epilogue, middle) = Epilogue::of_nodes(body, first.outputs[0], between)?;
    let second_epilogue = Epilogue::after(body, at + 2)?;
    let is_read = second.inputs[0] == middle && body.inputs().first() == first.inputs.first();
    if !is_read || first_epilogue.residual.is_some() {
        return None;
    }
    let pair = ConvPair::new(inner_shape(body, first, first_op)?, inner_shape(body, second, second_op)?)?;
    Some((pair, Half::new(body, first, first_epilogue)?, Half::new(body, second, second_epilogue)?))
}
