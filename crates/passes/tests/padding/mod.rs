//! Padding and splitting by hand: a Graph is run by reference on n rows, on n rows followed by pads, and in chunks.

pub mod random_graph;

use precast_ir::Graph;
use precast_ir::error::EvalError;
use precast_ir::eval::eval_graph;
use precast_passes::OutputRule;
use precast_tensor::{Bindings, DType, Dim, Symbol, Tensor, Type};

use crate::meaning::Random;

/// The size of symbols other than the Dim; on one of `SIZES` it equals the Dim, which must not count as evidence.
pub const OTHER_SIZE: i64 = 4;
/// Numbers of real rows and of rows after padding.
pub const SIZES: [(i64, i64); 3] = [(3, 5), (4, 6), (1, 4)];

/// What pad rows hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    CopyLast,
    CopyFirst,
    Zero,
    Nan,
    Infinite,
    Subnormal,
    Random,
    Extreme,
}

impl Content {
    pub const COPIES: &'static [Content] = &[Content::CopyLast, Content::CopyFirst];
    pub const ALL: &'static [Content] = &[
        Content::CopyLast,
        Content::CopyFirst,
        Content::Zero,
        Content::Nan,
        Content::Infinite,
        Content::Subnormal,
        Content::Random,
        Content::Extreme,
    ];

    /// The bytes of one pad element; of floats also what integers have no word for.
    fn element(self, dtype: DType, random: &mut Random) -> Vec<u8> {
        let float = match self {
            Content::Nan => f64::NAN,
            Content::Infinite if random.next(2) == 0 => f64::INFINITY,
            Content::Infinite => f64::NEG_INFINITY,
            Content::Subnormal => 1e-42,
            Content::Random => random.next(4001) as f64 / 10.0 - 200.0,
            Content::Extreme if random.next(2) == 0 => 3e38,
            Content::Extreme => -3e38,
            Content::Zero | Content::CopyLast | Content::CopyFirst => 0.0,
        };
        let (least, most) = dtype.int_range().unwrap_or((0, 1));
        let int = match self {
            Content::Random => i128::from(random.next(2)),
            Content::Nan | Content::Extreme => most,
            Content::Infinite => least,
            Content::Zero | Content::Subnormal | Content::CopyLast | Content::CopyFirst => 0,
        };
        let tensor = match dtype.is_float() {
            true => Tensor::from_f64(dtype, [], &[float], true),
            false => Tensor::from_i128(dtype, [], &[int]),
        };
        tensor.unwrap().as_bytes().to_vec()
    }
}

/// Numbers for all symbols of the inputs.
fn bindings(graph: &Graph, dim: &Symbol, rows: i64) -> Bindings {
    let mut bindings = Bindings::new();
    for symbol in graph.inputs().iter().flat_map(|&input| &graph.ty(input).dims).flat_map(Dim::symbols) {
        let size = if symbol == *dim { rows } else { OTHER_SIZE };
        bindings.insert(&symbol, size);
    }
    bindings
}

/// Random inputs for this many rows.
pub fn real_inputs(graph: &Graph, dim: &Symbol, rows: i64, random: &mut Random) -> Vec<Tensor> {
    let bindings = bindings(graph, dim, rows);
    graph.inputs().iter().map(|&input| random.tensor(&graph.ty(input).bind(&bindings))).collect()
}

/// Inputs of `from` rows with pads up to `to` rows, at the end of every axis that shows the Dim.
pub fn padded_inputs(
    graph: &Graph,
    dim: &Symbol,
    inputs: &[Tensor],
    (from, to): (i64, i64),
    content: Content,
    random: &mut Random,
) -> Vec<Tensor> {
    let (from, to) = (bindings(graph, dim, from), bindings(graph, dim, to));
    let mut padded = inputs.to_vec();
    for (tensor, &input) in padded.iter_mut().zip(graph.inputs()) {
        for (axis, size) in graph.ty(input).dims.iter().enumerate().filter(|(_, size)| size.symbols().contains(dim)) {
            let (real, all) = (size.eval(&from).unwrap() as usize, size.eval(&to).unwrap() as usize);
            // An extent of c × Dim has c elements a row; any other is padded one by one.
            let block = size.floor_div_exact(&Dim::from(dim)).and_then(|block| block.eval(&from)).unwrap_or(1);
            *tensor = pad_axis(tensor, axis, real, all, block as usize, content, random);
        }
    }
    padded
}

fn pad_axis(
    tensor: &Tensor,
    axis: usize,
    real: usize,
    all: usize,
    block: usize,
    content: Content,
    random: &mut Random,
) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    let inner: usize = shape[axis + 1..].iter().product::<usize>();
    let size = tensor.dtype().size_bytes();
    let mut bytes = Vec::new();
    for outer in tensor.as_bytes().chunks_exact(real * inner * size) {
        bytes.extend_from_slice(outer);
        for at in real..all {
            let source = match content {
                Content::CopyLast => Some(real - block + at % block),
                Content::CopyFirst => Some(at % block),
                _ => None,
            };
            match source {
                Some(source) => bytes.extend_from_slice(&outer[source * inner * size..][..inner * size]),
                None => (0..inner).for_each(|_| bytes.extend(content.element(tensor.dtype(), random))),
            }
        }
    }
    shape[axis] = all;
    Tensor::new(tensor.dtype(), shape, bytes.into()).unwrap()
}

/// Elements `first..first + count` of the factor `rows` of an axis of extent outer × rows × inner.
pub fn take_rows(
    tensor: &Tensor,
    axis: usize,
    (outer, inner): (i64, i64),
    rows: i64,
    first: i64,
    count: i64,
) -> Tensor {
    let mut shape = tensor.shape().to_vec();
    assert_eq!(shape[axis] as i64, outer * rows * inner, "axis {axis} of {shape:?}");
    let run = inner as usize * shape[axis + 1..].iter().product::<usize>() * tensor.dtype().size_bytes();
    let (rows, first, count) = (rows as usize, first as usize, count as usize);
    let blocks = tensor.as_bytes().chunks_exact((rows * run).max(1));
    let bytes: Vec<u8> = blocks.flat_map(|block| block[first * run..(first + count) * run].to_vec()).collect();
    shape[axis] = shape[axis] / rows * count;
    Tensor::new(tensor.dtype(), shape, bytes.into()).unwrap()
}

/// Outputs of a padded run with the pads taken off as the rules say.
pub fn real_rows(outputs: &[Tensor], rules: &[OutputRule], (from, to): (i64, i64)) -> Vec<Tensor> {
    let real = |(tensor, rule): (&Tensor, &OutputRule)| match rule {
        OutputRule::Whole => tensor.clone(),
        OutputRule::Rows { axis, outer, inner } => take_rows(tensor, *axis, (*outer, *inner), to, 0, from),
        OutputRule::Mixed => panic!("rows of a refused output"),
    };
    outputs.iter().zip(rules).map(real).collect()
}

/// Outputs of a padded run of a refused Graph, cut to the extents of the exact run on every axis that shows the Dim: the
/// guess that a session without a proof would make.
pub fn guessed_rows(graph: &Graph, dim: &Symbol, outputs: &[Tensor], exact: &[Tensor]) -> Vec<Tensor> {
    let cut = |at: usize| {
        let dims = graph.ty(graph.outputs()[at].value).dims.iter().enumerate();
        dims.filter(|(_, size)| size.symbols().contains(dim)).fold(outputs[at].clone(), |tensor, (axis, _)| {
            let all = tensor.shape()[axis] as i64;
            take_rows(&tensor, axis, (1, 1), all, 0, all.min(exact[at].shape()[axis] as i64))
        })
    };
    (0..outputs.len()).map(cut).collect()
}

/// Chunks of rows run one after the other, and their outputs joined as the rules say.
pub fn run_in_chunks(
    graph: &Graph,
    dim: &Symbol,
    inputs: &[Tensor],
    rules: &[OutputRule],
    rows: i64,
    first_rows: i64,
) -> Result<Vec<Tensor>, EvalError> {
    let chunk = |first: i64, count: i64| -> Result<Vec<Tensor>, EvalError> {
        let cut = |(&input, tensor): (&precast_ir::ValueId, &Tensor)| {
            let dims = graph.ty(input).dims.iter().enumerate();
            dims.filter(|(_, size)| size.symbols().contains(dim)).fold(tensor.clone(), |tensor, (axis, _)| {
                let inner = tensor.shape()[axis] as i64 / rows;
                take_rows(&tensor, axis, (1, inner), rows, first, count)
            })
        };
        let inputs: Vec<Tensor> = graph.inputs().iter().zip(inputs).map(cut).collect();
        eval_graph(graph, &inputs)
    };
    let (first, second) = (chunk(0, first_rows)?, chunk(first_rows, rows - first_rows)?);
    let join = |((a, b), rule): ((&Tensor, &Tensor), &OutputRule)| match rule {
        OutputRule::Whole => a.clone(),
        OutputRule::Rows { axis, inner, .. } => join_rows(a, b, *axis, *inner, first_rows, rows - first_rows),
        OutputRule::Mixed => panic!("rows of a refused output"),
    };
    Ok(first.iter().zip(&second).zip(rules).map(join).collect())
}

fn join_rows(a: &Tensor, b: &Tensor, axis: usize, inner: i64, a_rows: i64, b_rows: i64) -> Tensor {
    let mut shape = a.shape().to_vec();
    let run = inner as usize * shape[axis + 1..].iter().product::<usize>() * a.dtype().size_bytes();
    let a_blocks = a.as_bytes().chunks_exact((a_rows as usize * run).max(1));
    let b_blocks = b.as_bytes().chunks_exact((b_rows as usize * run).max(1));
    let bytes: Vec<u8> = a_blocks.zip(b_blocks).flat_map(|(a, b)| [a, b].concat()).collect();
    shape[axis] += b.shape()[axis];
    Tensor::new(a.dtype(), shape, bytes.into()).unwrap()
}

/// Whether tensors are the same bits; types included.
pub fn same_bits(a: &[Tensor], b: &[Tensor]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Type::eq(&a.type_(), &b.type_()) && a.as_bytes() == b.as_bytes())
}
