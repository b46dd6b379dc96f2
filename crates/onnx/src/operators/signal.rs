//! Fourier transforms and windows. A transform of a known length is a product with a constant table of cosines and
//! sines; the short-time transform is a convolution whose filters are that table times the window, so that the length of
//! the signal may be symbolic. Complex numbers are a last axis of two.

mod tables;

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Conv, UnaryFn};
use precast_tensor::{DType, Dim};

use crate::import::{Fault, Import, NodeCx};

use tables::{Transform, Window};

#[rustfmt::skip]
pub(super) const IMPORTS: &[Import] = &[
    Import { domain: "", name: "BlackmanWindow", since: 17, tier: 2, function: blackman_window },
    Import { domain: "", name: "DFT", since: 17, tier: 1, function: dft_17 },
    Import { domain: "", name: "DFT", since: 20, tier: 1, function: dft_20 },
    Import { domain: "", name: "HammingWindow", since: 17, tier: 2, function: hamming_window },
    Import { domain: "", name: "HannWindow", since: 17, tier: 2, function: hann_window },
    Import { domain: "", name: "MelWeightMatrix", since: 17, tier: 2, function: mel_weight_matrix },
    Import { domain: "", name: "STFT", since: 17, tier: 1, function: stft },
    Import { domain: "com.microsoft", name: "ComplexMul", since: 1, tier: 2, function: complex_mul },
    Import { domain: "com.microsoft", name: "ComplexMulConj", since: 1, tier: 2, function: complex_mul_conj },
    Import { domain: "com.microsoft", name: "Irfft", since: 1, tier: 2, function: irfft },
    Import { domain: "com.microsoft", name: "Rfft", since: 1, tier: 2, function: rfft },
];

type Outputs = Result<Vec<ValueId>, Fault>;

/// Tables of more elements than this are refused: a transform that long needs a fast algorithm.
const TABLE_ELEMENTS_MAX: usize = 1 << 25;
/// The same for weights and windows that a file asks for with a few numbers.
const WEIGHTS_MAX: usize = 1 << 22;

/// Opset 17 has the axis as an attribute, 1 by default.
fn dft_17(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let axis = cx.int("axis", 1)?;
    add_dft(cx, axis)
}

/// From opset 20 on it is an input, -2 by default.
fn dft_20(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let axis = match cx.optional(2) {
        Some(axis) => cx.require_int(axis, "the axis of the transform")?,
        None => -2,
    };
    add_dft(cx, axis)
}

fn add_dft(cx: &mut NodeCx<'_, '_>, axis: i64) -> Outputs {
    let x = cx.input(0)?;
    let (is_inverse, is_onesided) = (cx.flag("inverse", false)?, cx.flag("onesided", false)?);
    let axis = cx.axis(axis, cx.rank(x))?;
    let length = match cx.optional(1) {
        Some(length) => Some(cx.require_int(length, "the length of the transform (dft_length)")?),
        None => None,
    };
    Ok(vec![add_transform(cx, x, axis, length, (is_inverse, is_onesided))?])
}

/// The one-sided spectrum [.., n / 2 + 1, 2] of real numbers [.., n].
fn rfft(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = real_signal(cx)?;
    let rank = cx.rank(x);
    let parts = cx.unsqueeze(x, &[rank])?;
    Ok(vec![add_transform(cx, parts, rank - 1, None, (false, true))?])
}

/// The real numbers [.., n] of a one-sided spectrum [.., n / 2 + 1, 2].
fn irfft(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = real_signal(cx)?;
    let rank = cx.rank(x);
    if rank < 2 {
        return Err(Fault::Invalid(format!("the input has rank {rank}; 2 or more was expected")));
    }
    let parts = add_transform(cx, x, rank - 2, None, (true, true))?;
    let real = cx.slice_axis(parts, rank - 1, Dim::ZERO, Dim::ONE)?;
    Ok(vec![cx.squeeze(real, &[rank - 1])?])
}

/// The input of com.microsoft's transforms, whose attributes allow one form.
fn real_signal(cx: &NodeCx<'_, '_>) -> Result<ValueId, Fault> {
    for (name, covered) in [("normalized", 0), ("onesided", 1), ("signal_ndim", 1)] {
        let found = cx.int(name, covered)?;
        if found != covered {
            return Err(Fault::Unsupported(format!("{name}={found} is not covered; {covered} is")));
        }
    }
    cx.input(0)
}

fn complex_mul(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_complex_product(cx, 1.0)
}

fn complex_mul_conj(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_complex_product(cx, -1.0)
}

/// a times b, whose imaginary part has this sign; the parts of a number lie in the last axis.
fn add_complex_product(cx: &mut NodeCx<'_, '_>, sign: f64) -> Outputs {
    let mut parts = |position: usize, sign: f64| {
        let x = cx.input(position)?;
        let axis = cx.axis(-1, cx.rank(x))?;
        let real = cx.slice_axis(x, axis, Dim::ZERO, Dim::ONE)?;
        let imaginary = cx.slice_axis(x, axis, Dim::ONE, Dim::ONE)?;
        Ok::<_, Fault>((real, cx.unary_with(UnaryFn::Affine, sign, 0.0, imaginary)?))
    };
    let ((a, b), (c, d)) = (parts(0, 1.0)?, parts(1, sign)?);
    let [ac, bd, ad, bc] = [(a, c), (b, d), (a, d), (b, c)].map(|(x, y)| cx.binary(BinaryFn::Mul, x, y));
    let real = cx.binary(BinaryFn::Sub, ac?, bd?)?;
    let imaginary = cx.binary(BinaryFn::Add, ad?, bc?)?;
    let axis = cx.axis(-1, cx.rank(real))?;
    Ok(vec![cx.concat(&[real, imaginary], axis)?])
}

/// The transform of an axis of x [.., parts]; of its own length unless one is given.
fn add_transform(
    cx: &mut NodeCx<'_, '_>,
    x: ValueId,
    axis: usize,
    length: Option<i64>,
    (is_inverse, is_onesided): (bool, bool),
) -> Result<ValueId, Fault> {
    let rank = cx.rank(x);
    if rank < 2 || axis == rank - 1 {
        return Err(Fault::Invalid(format!("axis {axis} of rank {rank} holds the parts of complex numbers")));
    }
    let components = component_count(cx, x)?;
    let size = cx.number(&cx.dims(x)[axis], "the length of the transformed axis")?;
    let length = match length {
        Some(length) => length,
        // The one-sided form of an even length has length / 2 + 1 numbers.
        None if is_inverse && is_onesided => 2 * (size as i64 - 1),
        None => size as i64,
    };
    let length = usize::try_from(length)
        .ok()
        .filter(|&length| length > 0)
        .ok_or_else(|| Fault::Invalid(format!("the length of the transform is {length}; 1 or more was expected")))?;
    let transform = Transform::new(length, components, is_inverse, is_onesided);
    let used = size.min(transform.inputs());
    check_table(used * components, transform.outputs() * transform.output_components(), TABLE_ELEMENTS_MAX)?;

    // [.., used * components] times the table is [.., outputs * output components].
    let kept = cx.slice_axis(x, axis, Dim::ZERO, Dim::from(used))?;
    let mut perm: Vec<usize> = (0..rank - 1).filter(|&other| other != axis).collect();
    perm.extend([axis, rank - 1]);
    let last = cx.transpose(kept, perm)?;
    let mut dims = cx.dims(last);
    dims.truncate(rank - 2);
    let rows: Dim = dims.iter().product();
    let matrix = cx.reshape(last, vec![rows, Dim::from(used * components)])?;
    let shape = vec![used * components, transform.outputs() * transform.output_components()];
    let table = cx.float_tensor(cx.dtype(x), shape, &transform.table(used))?;
    let product = cx.matmul(matrix, table)?;
    dims.extend([Dim::from(transform.outputs()), Dim::from(transform.output_components())]);
    let spread = cx.reshape(product, dims)?;
    let mut back: Vec<usize> = (0..rank - 2).collect();
    back.insert(axis, rank - 2);
    back.push(rank - 1);
    cx.transpose(spread, back)
}

/// Real numbers have one component, complex ones two.
fn component_count(cx: &NodeCx<'_, '_>, x: ValueId) -> Result<usize, Fault> {
    let last = cx.dims(x).last().cloned().unwrap_or(Dim::ZERO);
    match cx.number(&last, "the last axis, which says whether numbers are complex,")? {
        components @ (1 | 2) => Ok(components),
        other => Err(Fault::Invalid(format!("the last axis has size {other}; 1 (real) or 2 (complex) was expected"))),
    }
}

fn check_table(rows: usize, columns: usize, elements_max: usize) -> Result<(), Fault> {
    if rows.saturating_mul(columns) <= elements_max {
        return Ok(());
    }
    Err(Fault::Unsupported(format!("a table of {rows} by {columns} numbers is larger than what is covered")))
}

/// Frames of the signal times the window, each transformed: output [batch, frames, bins, 2].
fn stft(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let (signal, window) = (cx.input(0)?, cx.optional(2));
    let is_onesided = cx.flag("onesided", true)?;
    let step = cx.require_int(cx.input(1)?, "the step from frame to frame (frame_step)")?;
    let stride = usize::try_from(step)
        .ok()
        .filter(|&stride| stride > 0)
        .ok_or_else(|| Fault::Invalid(format!("frame_step is {step}; 1 or more was expected")))?;
    let rank = cx.rank(signal);
    let signal = match rank {
        2 => cx.unsqueeze(signal, &[2])?,
        3 => signal,
        _ => return Err(Fault::Invalid(format!("the signal has rank {rank}; 3 was expected"))),
    };
    let components = component_count(cx, signal)?;
    let dims = cx.dims(signal);
    let length = frame_length(cx, window, &dims[1])?;
    let transform = Transform::new(length, components, false, is_onesided);
    let bins = transform.outputs();
    check_table(2 * bins, components * length, TABLE_ELEMENTS_MAX)?;

    let filter = add_filter(cx, &transform, window, cx.dtype(signal))?;
    let channels_first = if components == 1 {
        cx.reshape(signal, vec![dims[0].clone(), Dim::ONE, dims[1].clone()])?
    } else {
        cx.transpose(signal, vec![0, 2, 1])?
    };
    let op =
        Conv { stride: vec![stride], pad_lo: vec![Dim::ZERO], pad_hi: vec![Dim::ZERO], dilation: vec![1], groups: 1 };
    let spectrum = cx.add(op, &[channels_first, filter])?;
    let frames = cx.dims(spectrum)[2].clone();
    let spectrum = cx.transpose(spectrum, vec![0, 2, 1])?;
    Ok(vec![cx.reshape(spectrum, vec![dims[0].clone(), frames, Dim::from(bins), Dim::from(2)])?])
}

/// What frame_length says, else the window's length, else the signal's.
fn frame_length(cx: &NodeCx<'_, '_>, window: Option<ValueId>, signal: &Dim) -> Result<usize, Fault> {
    let what = "the length of a frame";
    let given = match cx.optional(3) {
        Some(length) => Some(cx.require_int(length, "the length of a frame (frame_length)")?),
        None => None,
    };
    let window = match window {
        Some(window) => Some(cx.number(&cx.ty(window).element_count(), what)?),
        None => None,
    };
    let length = match (given, window) {
        (Some(given), Some(window)) if given != window as i64 => {
            return Err(Fault::Invalid(format!("frame_length is {given}, but the window has {window} elements")));
        }
        (Some(given), _) => given,
        (None, Some(window)) => window as i64,
        (None, None) => cx.number(signal, what)? as i64,
    };
    usize::try_from(length)
        .ok()
        .filter(|&length| length > 0)
        .ok_or_else(|| Fault::Invalid(format!("the length of a frame is {length}; 1 or more was expected")))
}

/// Convolution filters [2 * bins, components, length]: the transform's table times the window.
fn add_filter(
    cx: &mut NodeCx<'_, '_>,
    transform: &Transform,
    window: Option<ValueId>,
    dtype: DType,
) -> Result<ValueId, Fault> {
    let (rows, columns) = (transform.length * transform.components, 2 * transform.outputs());
    let shape = vec![columns, transform.components, transform.length];
    let table = transform.table(transform.length);
    // A constant window is multiplied in before rounding.
    let constant = window.filter(|&window| cx.constant(window).is_some());
    let weights = match constant {
        Some(window) => cx.require_floats(window, "the window")?,
        None => vec![1.0; transform.length],
    };
    let mut elements = vec![0.0; rows * columns];
    for row in 0..rows {
        let (position, component) = (row / transform.components, row % transform.components);
        for column in 0..columns {
            let at = (column * transform.components + component) * transform.length + position;
            elements[at] = table[row * columns + column] * weights[position];
        }
    }
    let filter = cx.float_tensor(dtype, shape, &elements)?;
    match window {
        Some(window) if constant.is_none() => {
            let window = cx.cast(window, dtype)?;
            cx.binary(BinaryFn::Mul, filter, window)
        }
        _ => Ok(filter),
    }
}

fn hann_window(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_window(cx, Window::Hann)
}

fn hamming_window(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_window(cx, Window::Hamming)
}

fn blackman_window(cx: &mut NodeCx<'_, '_>) -> Outputs {
    add_window(cx, Window::Blackman)
}

fn add_window(cx: &mut NodeCx<'_, '_>, window: Window) -> Outputs {
    let is_periodic = cx.flag("periodic", true)?;
    let to = cx.dtype_attribute("output_datatype")?.unwrap_or(DType::F32);
    let size = cx.require_int(cx.input(0)?, "the size of the window")?;
    let size = usize::try_from(size)
        .ok()
        .filter(|&size| size <= WEIGHTS_MAX)
        .ok_or_else(|| Fault::Invalid(format!("the size of the window cannot be {size}")))?;
    Ok(vec![cx.float_tensor(to, vec![size], &window.elements(size, is_periodic))?])
}

fn mel_weight_matrix(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let to = cx.dtype_attribute("output_datatype")?.unwrap_or(DType::F32);
    let size = |position: usize, what: &str| -> Result<usize, Fault> {
        let number = cx.require_int(cx.input(position)?, what)?;
        usize::try_from(number)
            .ok()
            .filter(|&number| number > 0)
            .ok_or_else(|| Fault::Invalid(format!("{what} is {number}; 1 or more was expected")))
    };
    let (bands, length, rate) = (size(0, "num_mel_bins")?, size(1, "dft_length")?, size(2, "sample_rate")?);
    let edge = |position: usize, what: &str| -> Result<f64, Fault> {
        let elements = cx.require_floats(cx.input(position)?, what)?;
        elements.first().copied().ok_or_else(|| Fault::Invalid(format!("{what} has no element")))
    };
    let (low, high) = (edge(3, "lower_edge_hertz")?, edge(4, "upper_edge_hertz")?);
    let bins = length / 2 + 1;
    check_table(bins, bands, WEIGHTS_MAX)?;
    let elements = tables::mel_weights(bands, length, rate, low, high);
    Ok(vec![cx.float_tensor(to, vec![bins, bands], &elements)?])
}
