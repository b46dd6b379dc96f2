//! Einsum: operands are brought together two at a time, each time as one matrix product over the labels that end there,
//! or as an elementwise product where none does. Labels are letters; the axes of an ellipsis get labels of their own,
//! counted from the right so that they align as broadcasting does.

use precast_ir::ValueId;
use precast_ir::op::{BinaryFn, Matmul, ReduceFn, Slice};
use precast_tensor::Dim;

use crate::import::{Fault, NodeCx};

/// An axis of an operand or of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    /// An axis of the ellipsis, counted from its last.
    Ellipsis(usize),
    Letter(char),
}

/// A value and the label of each of its axes; labels differ from each other.
#[derive(Clone)]
struct Operand {
    value: ValueId,
    labels: Vec<Label>,
}

pub(super) fn einsum(cx: &mut NodeCx<'_, '_>) -> Result<Vec<ValueId>, Fault> {
    let equation: String = cx.string("equation", "")?.chars().filter(|letter| !letter.is_whitespace()).collect();
    let inputs = cx.all_inputs()?;
    let ranks: Vec<usize> = inputs.iter().map(|&input| cx.rank(input)).collect();
    let (terms, output) = parse(&equation, &ranks)?;
    let mut operands = Vec::new();
    for (value, labels) in inputs.into_iter().zip(terms) {
        operands.push(take_diagonals(cx, value, labels)?);
    }
    for &label in &output {
        if !operands.iter().any(|operand| operand.labels.contains(&label)) {
            return Err(Fault::Invalid(format!("equation '{equation}': {label:?} of the output is in no operand")));
        }
    }
    let mut operands = operands.into_iter();
    let Some(mut joined) = operands.next() else {
        return Err(Fault::Invalid("there are no operands".to_string()));
    };
    let rest: Vec<Operand> = operands.collect();
    for (position, operand) in rest.iter().enumerate() {
        let is_kept = |label: &Label| {
            output.contains(label) || rest[position + 1..].iter().any(|later| later.labels.contains(label))
        };
        joined = join(cx, joined, operand.clone(), &is_kept)?;
    }
    let joined = sum_out(cx, joined, &|label| output.contains(label))?;
    Ok(vec![arrange(cx, &joined, &output)?])
}

/// Labels of every operand and of the output.
fn parse(equation: &str, ranks: &[usize]) -> Result<(Vec<Vec<Label>>, Vec<Label>), Fault> {
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left, Some(right)),
        None => (equation, None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != ranks.len() {
        return Err(Fault::Invalid(format!(
            "equation '{equation}' has {} operands; the node has {}",
            terms.len(),
            ranks.len()
        )));
    }
    let mut ellipsis_rank = 0;
    let mut operands = Vec::new();
    for (term, &rank) in terms.iter().zip(ranks) {
        let letters = term.replace("...", "").chars().count();
        let covered = if term.contains("...") { rank.checked_sub(letters) } else { (letters == rank).then_some(0) };
        let covered = covered.ok_or_else(|| {
            Fault::Invalid(format!("equation '{equation}': '{term}' does not fit an operand of rank {rank}"))
        })?;
        ellipsis_rank = ellipsis_rank.max(covered);
        operands.push(labels(term, covered, equation)?);
    }
    let output = match right {
        Some(right) => labels(right, ellipsis_rank, equation)?,
        None => implicit_output(&operands, ellipsis_rank),
    };
    if (1..output.len()).any(|position| output[..position].contains(&output[position])) {
        return Err(Fault::Invalid(format!("equation '{equation}': an output label is given twice")));
    }
    Ok((operands, output))
}

fn labels(term: &str, ellipsis_rank: usize, equation: &str) -> Result<Vec<Label>, Fault> {
    let mut labels = Vec::new();
    let (before, after) = term.split_once("...").unwrap_or((term, ""));
    let has_ellipsis = term.contains("...");
    for (part, is_after) in [(before, false), (after, true)] {
        if is_after && has_ellipsis {
            labels.extend((0..ellipsis_rank).rev().map(Label::Ellipsis));
        }
        for letter in part.chars() {
            if !letter.is_ascii_alphabetic() {
                return Err(Fault::Invalid(format!("equation '{equation}': '{letter}' is not a label")));
            }
            labels.push(Label::Letter(letter));
        }
    }
    Ok(labels)
}

/// The ellipsis, then every letter that occurs once, in alphabetical order.
fn implicit_output(operands: &[Vec<Label>], ellipsis_rank: usize) -> Vec<Label> {
    let all: Vec<Label> = operands.iter().flatten().copied().collect();
    let mut once: Vec<Label> = all
        .iter()
        .copied()
        .filter(|label| matches!(label, Label::Letter(_)) && all.iter().filter(|other| *other == label).count() == 1)
        .collect();
    once.sort_unstable();
    (0..ellipsis_rank).rev().map(Label::Ellipsis).chain(once).collect()
}

/// An operand with each label once: two axes of one label become their diagonal.
fn take_diagonals(cx: &mut NodeCx<'_, '_>, value: ValueId, labels: Vec<Label>) -> Result<Operand, Fault> {
    let mut operand = Operand { value, labels };
    loop {
        let repeated = (1..operand.labels.len()).find_map(|axis| {
            operand.labels[..axis].iter().position(|label| *label == operand.labels[axis]).map(|first| (first, axis))
        });
        let Some((first, second)) = repeated else {
            return Ok(operand);
        };
        let rank = operand.labels.len();
        let mut perm: Vec<usize> = (0..rank).filter(|&axis| axis != first && axis != second).collect();
        perm.extend([first, second]);
        let moved = cx.transpose(operand.value, perm.clone())?;
        let mut dims = cx.dims(moved);
        let size = cx.number(&dims[rank - 1], "the size of an axis whose diagonal is taken")?;
        if dims[rank - 2] != dims[rank - 1] {
            return Err(Fault::Invalid("the axes of a repeated label have different sizes".to_string()));
        }
        dims.truncate(rank - 2);
        dims.push(Dim::from(size * size));
        let flat = cx.reshape(moved, dims.clone())?;
        let mut step = vec![1; rank - 1];
        step[rank - 2] = size as i64 + 1;
        dims[rank - 2] = Dim::from(size);
        let value = cx.add(Slice { start: vec![Dim::ZERO; rank - 1], step, size: dims }, &[flat])?;
        let labels = perm[..rank - 1].iter().map(|&axis| operand.labels[axis]).collect();
        operand = Operand { value, labels };
    }
}

/// The product of two operands, summed over labels that are not kept.
fn join(cx: &mut NodeCx<'_, '_>, a: Operand, b: Operand, is_kept: &dyn Fn(&Label) -> bool) -> Result<Operand, Fault> {
    let (a, b) = (drop_broadcast(cx, &a, &b)?, drop_broadcast(cx, &b, &a)?);
    let b_labels = b.labels.clone();
    let a = sum_out(cx, a, &|label| is_kept(label) || b_labels.contains(label))?;
    let a_labels = a.labels.clone();
    let b = sum_out(cx, b, &|label| is_kept(label) || a_labels.contains(label))?;
    let shared: Vec<Label> = a.labels.iter().copied().filter(|label| b.labels.contains(label)).collect();
    let (batch, summed): (Vec<Label>, Vec<Label>) = shared.iter().copied().partition(|label| is_kept(label));
    let only = |one: &Operand| one.labels.iter().copied().filter(|label| !shared.contains(label)).collect();
    let (rows, columns): (Vec<Label>, Vec<Label>) = (only(&a), only(&b));
    let labels: Vec<Label> = [&batch[..], &rows, &columns].concat();
    if summed.is_empty() {
        let a = spread(cx, &a, &labels)?;
        let b = spread(cx, &b, &labels)?;
        return Ok(Operand { value: cx.binary(BinaryFn::Mul, a, b)?, labels });
    }
    let dims: Vec<Dim> = labels
        .iter()
        .map(|label| dim_of(cx, &a, label).or_else(|| dim_of(cx, &b, label)))
        .collect::<Option<_>>()
        .ok_or_else(|| Fault::Invalid("a label is in no operand".to_string()))?;
    // An operand that has its summed labels on the other side is read transposed instead of being moved.
    let transpose_a = a.labels == [&batch[..], &summed, &rows].concat();
    let transpose_b = b.labels == [&batch[..], &columns, &summed].concat();
    let a = if transpose_a { matrix(cx, &a, &batch, &summed, &rows)? } else { matrix(cx, &a, &batch, &rows, &summed)? };
    let b = if transpose_b {
        matrix(cx, &b, &batch, &columns, &summed)?
    } else {
        matrix(cx, &b, &batch, &summed, &columns)?
    };
    let product = cx.add(Matmul { transpose_a, transpose_b }, &[a, b])?;
    Ok(Operand { value: cx.reshape(product, dims)?, labels })
}

/// Without the axes of size 1 that the other operand broadcasts.
fn drop_broadcast(cx: &mut NodeCx<'_, '_>, operand: &Operand, other: &Operand) -> Result<Operand, Fault> {
    let dropped: Vec<usize> = (0..operand.labels.len())
        .filter(|&axis| {
            let label = operand.labels[axis];
            cx.dims(operand.value)[axis] == Dim::ONE && dim_of(cx, other, &label).is_some_and(|dim| dim != Dim::ONE)
        })
        .collect();
    let value = cx.squeeze(operand.value, &dropped)?;
    let labels = operand
        .labels
        .iter()
        .enumerate()
        .filter(|(axis, _)| !dropped.contains(axis))
        .map(|(_, &label)| label)
        .collect();
    Ok(Operand { value, labels })
}

/// Summed over the labels that are not kept.
fn sum_out(cx: &mut NodeCx<'_, '_>, operand: Operand, is_kept: &dyn Fn(&Label) -> bool) -> Result<Operand, Fault> {
    let axes: Vec<usize> = (0..operand.labels.len()).filter(|&axis| !is_kept(&operand.labels[axis])).collect();
    if axes.is_empty() {
        return Ok(operand);
    }
    let value = cx.reduce(ReduceFn::Sum, operand.value, axes, false)?;
    Ok(Operand { value, labels: operand.labels.into_iter().filter(|label| is_kept(label)).collect() })
}

/// [batch.., first, second] with the labels of `first` and of `second` each in one axis.
fn matrix(
    cx: &mut NodeCx<'_, '_>,
    operand: &Operand,
    batch: &[Label],
    first: &[Label],
    second: &[Label],
) -> Result<ValueId, Fault> {
    let order: Vec<Label> = [batch, first, second].concat();
    let value = arrange(cx, operand, &order)?;
    let dims = cx.dims(value);
    let (batch_dims, rest) = dims.split_at(batch.len());
    let (first_dims, second_dims) = rest.split_at(first.len());
    let mut shape = batch_dims.to_vec();
    shape.push(first_dims.iter().product());
    shape.push(second_dims.iter().product());
    cx.reshape(value, shape)
}

/// Axes in the order of `labels`, with size 1 for those that the operand lacks.
fn spread(cx: &mut NodeCx<'_, '_>, operand: &Operand, labels: &[Label]) -> Result<ValueId, Fault> {
    let own: Vec<Label> = labels.iter().copied().filter(|label| operand.labels.contains(label)).collect();
    let value = arrange(cx, operand, &own)?;
    let lacking: Vec<usize> = (0..labels.len()).filter(|&axis| !operand.labels.contains(&labels[axis])).collect();
    cx.unsqueeze(value, &lacking)
}

/// Axes in the order of `labels`, which are the operand's own.
fn arrange(cx: &mut NodeCx<'_, '_>, operand: &Operand, labels: &[Label]) -> Result<ValueId, Fault> {
    let perm = labels
        .iter()
        .map(|label| operand.labels.iter().position(|own| own == label))
        .collect::<Option<Vec<usize>>>()
        .ok_or_else(|| Fault::Invalid(format!("{labels:?} are not the labels of an operand")))?;
    cx.transpose(operand.value, perm)
}

fn dim_of(cx: &NodeCx<'_, '_>, operand: &Operand, label: &Label) -> Option<Dim> {
    let axis = operand.labels.iter().position(|own| own == label)?;
    Some(cx.dims(operand.value)[axis].clone())
}
