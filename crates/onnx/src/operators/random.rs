//! Random tensors. The generator is counter-based and the same on every target. Its key comes from the `seed` attribute,
//! or from the node's name where there is none, so that a model gives the same numbers in every run.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, CompareFn, Cumulate, CumulateFn, Normal, ReduceFn, Uniform};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "Bernoulli", since: 15, tier: 2, function: bernoulli },
    Import { domain: "", name: "Multinomial", since: 7, tier: 2, function: multinomial },
    Import { domain: "", name: "RandomNormal", since: 1, tier: 2, function: random_normal },
    Import { domain: "", name: "RandomNormalLike", since: 1, tier: 1, function: random_normal_like },
    Import { domain: "", name: "RandomUniform", since: 1, tier: 2, function: random_uniform },
    Import { domain: "", name: "RandomUniformLike", since: 1, tier: 2, function: random_uniform_like },
];

type Outputs = Result<Vec<ValueId>, Fault>;

fn random_normal(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (to, shape) = read_type(cx)?;
    add_normal(cx, to, shape)
}

fn random_normal_like(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (to, shape) = read_type_like(cx)?;
    add_normal(cx, to, shape)
}

fn add_normal(cx: &mut NodeCx<'_, '_>, to: DType, shape: Vec<Dim>) -> Outputs {
    let (mean, deviation) = (cx.float("mean", 0.0)?, cx.float("scale", 1.0)?);
    let key = read_key(cx)?;
    Ok(vec![cx.add(Normal { to, shape, mean, deviation, key }, &[])?])
}

fn random_uniform(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (to, shape) = read_type(cx)?;
    add_uniform(cx, to, shape)
}

fn random_uniform_like(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (to, shape) = read_type_like(cx)?;
    add_uniform(cx, to, shape)
}

fn add_uniform(cx: &mut NodeCx<'_, '_>, to: DType, shape: Vec<Dim>) -> Outputs {
    let (low, high) = (cx.float("low", 0.0)?, cx.float("high", 1.0)?);
    let key = read_key(cx)?;
    Ok(vec![cx.add(Uniform { to, shape, low, high, key }, &[])?])
}

/// 1 with the probability that the input has, else 0.
fn bernoulli(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let probability = cx.input(0)?;
    let ty = cx.ty(probability);
    let to = cx.dtype_attribute("dtype")?.unwrap_or(ty.dtype);
    let key = read_key(cx)?;
    let sample = cx.add(Uniform { to: ty.dtype, shape: ty.dims, low: 0.0, high: 1.0, key }, &[])?;
    let is_one = cx.compare(CompareFn::Lt, sample, probability)?;
    Ok(vec![cx.cast(is_one, to)?])
}

/// Classes drawn by their logarithmic probabilities [rows, classes]: the first whose share of the sum, with all before it, is
/// more than a sample.
fn multinomial(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let logarithms = cx.input(0)?;
    if cx.rank(logarithms) != 2 {
        return Err(Fault::Invalid(format!("the input has rank {}; 2 was expected", cx.rank(logarithms))));
    }
    let to = cx.dtype_attribute("dtype")?.unwrap_or(DType::I32);
    let count = cx.int("sample_size", 1)?;
    let count = usize::try_from(count).map_err(|_| Fault::Invalid(format!("attribute 'sample_size' is {count}")))?;
    let key = read_key(cx)?;
    let ty = cx.ty(logarithms);
    let probability = cx.softmax(logarithms, 1)?;
    let shares =
        cx.add(Cumulate { func: CumulateFn::Sum, axis: 1, exclusive: false, reverse: false }, &[probability])?;
    let shape = vec![ty.dims[0].clone(), Dim::from(count), Dim::ONE];
    let sample = cx.add(Uniform { to: ty.dtype, shape, low: 0.0, high: 1.0, key }, &[])?;
    let shares = cx.unsqueeze(shares, &[1])?;
    let is_passed = cx.compare(CompareFn::Le, shares, sample)?;
    let passed = cx.cast(is_passed, DType::I64)?;
    let class = cx.reduce(ReduceFn::Sum, passed, vec![2], false)?;
    // Shares that round to less than 1 may all be passed.
    let classes = cx.dim_value(ty.dims[1].clone())?;
    let last = cx.binary_scalar(BinaryFn::Sub, classes, 1.0)?;
    let class = cx.binary(BinaryFn::Min, class, last)?;
    Ok(vec![cx.cast(class, to)?])
}

/// Element type and shape from attributes.
fn read_type(cx: &NodeCx<'_, '_>) -> Result<(DType, Vec<Dim>), Fault> {
    let to = cx.dtype_attribute("dtype")?.unwrap_or(DType::F32);
    let shape = cx.sizes("shape")?.ok_or_else(|| Fault::Invalid("attribute 'shape' is missing".to_string()))?;
    Ok((checked(to)?, shape.into_iter().map(Dim::from).collect()))
}

/// Shape of the input, and its element type where the attributes do not name one.
fn read_type_like(cx: &NodeCx<'_, '_>) -> Result<(DType, Vec<Dim>), Fault> {
    let ty = cx.ty(cx.input(0)?);
    let to = cx.dtype_attribute("dtype")?.unwrap_or(ty.dtype);
    Ok((checked(to)?, ty.dims))
}

fn checked(to: DType) -> Result<DType, Fault> {
    if to.is_float() {
        return Ok(to);
    }
    Err(Fault::Invalid(format!("random elements cannot be {}; a float type was expected", to.name())))
}

fn read_key(cx: &NodeCx<'_, '_>) -> Result<i64, Fault> {
    match cx.attributes().float("seed")? {
        Some(seed) => Ok(i64::from((seed as f32).to_bits())),
        None => Ok(hash(cx.name())),
    }
}

/// 64-bit FNV-1a: fixed by its definition, so keys do not change between builds.
fn hash(name: &str) -> i64 {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    name.bytes().fold(OFFSET, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(PRIME)) as i64
}
