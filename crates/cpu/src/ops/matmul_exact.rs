//! Products with constant f32 weights that need fewer bits than f32 has: the same numbers, of which fewer bytes are read.
//! Which form they have is found while compiling and is the tactic of the step.

use precast_ir::Op;
use precast_ir::op::Matmul;
use precast_kernels::exact_weights::PlainWeights;
use precast_kernels::gemm_blocks::{BlockWeights, Code};
use precast_tensor::{DType, Tensor};

use crate::ops::epilogue::Epilogue;
use crate::step::{Machine, Read, StepNode, Tactic, f32_elements};

/// Weights of fewer elements stay f32: they come from a cache, where reading them costs no more than making them.
const ELEMENTS_MIN: usize = 1 << 16;

const PREFIX: &str = "exact";
const CODES: [(&str, Code); 4] =
    [("int4", Code::Int4), ("uint4", Code::Uint4), ("int8", Code::Int8), ("bf16", Code::Bf16)];

/// The tactic of a product whose weights have a smaller form.
pub fn choose(step: &StepNode, machine: Machine) -> Option<Tactic> {
    let op = product_of(step).filter(|_| !machine.is_strict && !machine.is_bf16)?;
    let constant = step.constant(1)?;
    let elements = f32_elements(constant.as_bytes());
    let form = plain(step, op, &elements).exact_form(machine.isa);
    drop(elements);
    constant.release_pages();
    let form = form?;
    let (name, _) = CODES.into_iter().find(|(_, code)| *code == form.code)?;
    let why = match form.code {
        Code::Bf16 => "(every weight is bf16)".to_string(),
        code => format!("(weights have {} levels in blocks of {})", 1 << code.bits(), form.block),
    };
    Some(Tactic { name: format!("{PREFIX}_{name}_{}", form.block), why })
}

/// The form of the weights that a step's tactic says.
pub fn said_form(step: &StepNode, k: usize, n: usize) -> Result<Option<BlockWeights>, String> {
    let Some(tactic) = &step.tactic else { return Ok(None) };
    let parse = || {
        let (name, block) = tactic.name.strip_prefix(PREFIX)?.strip_prefix('_')?.split_once('_')?;
        let (_, code) = CODES.into_iter().find(|(known, _)| *known == name)?;
        let form = BlockWeights { k, n, block: block.parse().ok()?, code, has_shifts: code == Code::Uint4 };
        form.is_exact_form().then_some(form)
    };
    parse().map(Some).ok_or_else(|| format!("its tactic '{}' is unknown", tactic.name))
}

/// The weights of a product in a form that they have.
pub fn packed(step: &StepNode, op: &Matmul, form: BlockWeights, machine: Machine) -> Result<Read, String> {
    let fill = step.constant(1).map(|tensor: &Tensor| {
        move |packed: &mut [u32]| {
            plain(step, op, &f32_elements(tensor.as_bytes())).pack(machine.isa, &form, packed);
            tensor.release_pages();
        }
    });
    Read::packed(form.packed_len(), fill)
}

/// The product of a step that multiplies with one large constant f32 matrix, and has an epilogue that such products can have.
fn product_of(step: &StepNode) -> Option<&Matmul> {
    let (op, epilogue) = match step.op() {
        Op::Matmul(op) => (op, Epilogue::default()),
        Op::Fused(fused) => {
            let root = fused.body.nodes().first()?;
            match &root.op {
                Op::Matmul(op) if fused.body.inputs().starts_with(&root.inputs) => (op, Epilogue::of(&fused.body)?),
                _ => return None,
            }
        }
        _ => return None,
    };
    let shape = step.shape(1);
    let is_f32 = step.dtype(0) == DType::F32 && step.dtype(1) == DType::F32;
    let is_large = shape.len() == 2 && shape.iter().product::<usize>() >= ELEMENTS_MIN;
    let is_covered = is_f32 && is_large && step.is_constant(1) && !op.transpose_a && epilogue.scale.is_none();
    is_covered.then_some(op)
}

fn plain<'e>(step: &StepNode, op: &Matmul, data: &'e [f32]) -> PlainWeights<'e> {
    let shape = step.shape(1);
    let (k, n) = if op.transpose_b { (shape[1], shape[0]) } else { (shape[0], shape[1]) };
    PlainWeights { data, k, n, is_transposed: op.transpose_b }
}
