//! A fused body: elementwise nodes become one kernel; what has a product, a convolution or an attention at its root is
//! lowered by `fused_epilogue.rs`; any other body runs node by node, with scratch memory between nodes.

use std::collections::BTreeMap;

use precast_ir::Graph;
use precast_passes::fuse_pointwise::is_pointwise;

use crate::kernel::{Lowered, Operand};
use crate::ops::{elementwise, fused_epilogue, gather_concat, quantize, stream};
use crate::site::{Layouts, Site};

/// Scratch buffers begin at multiples of this.
const ALIGNMENT: u64 = 16;

/// The kernels of a fused body.
pub fn lower(site: &Site, body: &Graph) -> Result<Option<Lowered>, String> {
    if body.nodes().iter().all(|node| is_pointwise(&node.op)) {
        let outputs: Vec<_> = body.outputs().iter().map(|output| output.value).collect();
        if let Some(lowered) = elementwise::lower_nodes(site, body, body.nodes(), body.inputs(), &outputs) {
            return Ok(Some(lowered));
        }
    } else if let Some(lowered) = stream::lower(site, body) {
        return Ok(Some(lowered));
    } else if let Some(lowered) = quantize::lower_unpacked(site, body) {
        return Ok(Some(lowered));
    } else if let Some(lowered) = gather_concat::lower(site, body) {
        return Ok(Some(lowered));
    } else if let Some(lowered) = fused_epilogue::lower(site)? {
        return Ok(Some(lowered));
    }
    lower_node_by_node(site, body)
}

/// The launches of every node of a body, one after the other. `None` if a node has no kernel.
fn lower_node_by_node(site: &Site, body: &Graph) -> Result<Option<Lowered>, String> {
    let mut lowered = Lowered {
        name: format!("nodes.{}", body.nodes().iter().map(|node| node.op.name()).collect::<Vec<_>>().join("+")),
        launches: Vec::new(),
        scratch_bytes: Vec::new(),
        packed: Vec::new(),
    };
    let mut layouts = Layouts::default();
    let mut places: BTreeMap<u32, Operand> = BTreeMap::new();
    for (input, value) in body.inputs().iter().enumerate() {
        places.insert(value.0, Operand::Read(input as u32));
        if site.layouts.is_channels_last(site.node.inputs[input]) {
            layouts.set_channels_last(*value);
        }
    }
    for (output, value) in body.outputs().iter().enumerate() {
        // A value that is an operand or already another result would have to be copied.
        if places.insert(value.value.0, Operand::Write(output as u32)).is_some() {
            return Ok(None);
        }
        if site.layouts.is_channels_last(site.node.outputs[output]) {
            layouts.set_channels_last(value.value);
        }
    }
    for node in body.nodes() {
        for &output in &node.outputs {
            let Some(shape) = body.ty(output).shape() else { return Ok(None) };
            let bytes = (shape.iter().product::<usize>() * body.ty(output).dtype.size_bytes()) as u64;
            places.entry(output.0).or_insert_with(|| {
                lowered.scratch_bytes.push(bytes.next_multiple_of(ALIGNMENT).max(ALIGNMENT));
                Operand::Scratch(lowered.scratch_bytes.len() as u32 - 1)
            });
        }
        for &input in &node.inputs {
            if let (false, Some(tensor)) = (places.contains_key(&input.0), body.constant(input)) {
                places.insert(input.0, Operand::Packed(lowered.packed.len() as u32));
                lowered.packed.push(tensor.clone());
            }
        }
        let inner = Site { graph: body, node, arch: site.arch, layouts: &layouts };
        let Some(part) = crate::lower::lower(&inner)? else { return Ok(None) };
        let (scratch, packed) = (lowered.scratch_bytes.len() as u32, lowered.packed.len() as u32);
        lowered.scratch_bytes.extend(part.scratch_bytes);
        lowered.packed.extend(part.packed);
        for mut launch in part.launches {
            for operand in &mut launch.operands {
                *operand = match *operand {
                    Operand::Read(at) => places[&node.inputs[at as usize].0],
                    Operand::Write(at) => places[&node.outputs[at as usize].0],
                    Operand::Scratch(at) => Operand::Scratch(scratch + at),
                    Operand::Packed(at) => Operand::Packed(packed + at),
                };
            }
            lowered.launches.push(launch);
        }
    }
    Ok(Some(lowered))
}
