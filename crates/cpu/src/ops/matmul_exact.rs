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

/// Weights that may have a smaller form.
pub struct Candidate<'s> {
    /// The weights.
    pub constant: &'s Tensor,
    /// Whether they are n × k.
    pub is_transposed: bool,
}

/// The weights of a product that may have a smaller form.
pub fn candidate(step: &StepNode, machine: Machine) -> Option<Candidate<'_>> {
    let op = product_of(step).filter(|_| !machine.is_strict && !machine.is_bf16)?;
    Some(Candidate { constant: step.constant(1)?, is_transposed: op.transpose_b })
}

impl Candidate<'_> {
    /// The tactic of their product if they have a smaller form.
    pub fn tactic(&self, machine: Machine) -> Option<Tactic> {
        let &[rows, columns] = self.constant.shape() else { return None };
        let (k, n) = if self.is_transposed { (columns, rows) } else { (rows, columns) };
        let data = f32_elements(self.constant.as_bytes());
        let form = PlainWeights { data: &data, k, n, is_transposed: self.is_transposed }.exact_form(machine.isa);
        drop(data);
        self.constant.release_pages();
        let form = form?;
        let (name, _) = CODES.into_iter().find(|(_, code)| *code == form.code)?;
        let why = match form.code {
            Code::Bf16 => "(every weight is bf16)".to_string(),
            code => format!("(weights have {} levels in blocks of {})", 1 << code.bits(), form.block),
        };
        Some(Tactic { name: format!("{PREFIX}_{name}_{}", form.block), why })
    }
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
pub fn packed(step: &StepNode, op: &Matmul, form: BlockWeights, machine: Machine) -> Read {
    let is_transposed = op.transpose_b;
    let words = format!("{PREFIX} {form:?} transposed {is_transposed}");
    let constants = step.constant(1).map(|tensor| [tensor.clone()]);
    Read::packed_once(form.packed_len(), words, constants, move |[tensor], packed: &mut [u32]| {
        let data = &f32_elements(tensor.as_bytes());
        PlainWeights { data, k: form.k, n: form.n, is_transposed }.pack(machine.isa, &form, packed);
        tensor.release_pages();
    })
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
