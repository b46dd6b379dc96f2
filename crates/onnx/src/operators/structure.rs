//! Sequences and optionals. They are resolved while importing: a sequence is a list of values and an optional its element
//! or nothing, so most of these operators leave no node behind. Lengths and places must be known for that.

use precast_ir::ValueId;
use precast_tensor::{Dim, Tensor};

use crate::import::{Applies, Fault, NodeCx, StructureImport, Value};
use crate::proto::GraphProto;

/// Rows of this family.
pub(super) const STRUCTURES: &[StructureImport] = &[
    StructureImport::onnx("ConcatFromSequence", 11, 3, concat_from_sequence),
    StructureImport {
        domain: "",
        name: "Identity",
        since: 1,
        tier: 1,
        applies: Applies::ToStructures,
        function: |cx| Ok(vec![cx.value(0)?]),
    },
    StructureImport::onnx("Optional", 15, 3, optional),
    StructureImport::onnx("OptionalGetElement", 15, 3, optional_get_element),
    StructureImport::onnx("OptionalHasElement", 15, 3, optional_has_element),
    StructureImport::onnx("SequenceAt", 11, 3, sequence_at),
    StructureImport::onnx("SequenceConstruct", 11, 3, sequence_construct),
    StructureImport::onnx("SequenceEmpty", 11, 3, sequence_empty),
    StructureImport::onnx("SequenceErase", 11, 3, sequence_erase),
    StructureImport::onnx("SequenceInsert", 11, 3, sequence_insert),
    StructureImport::onnx("SequenceLength", 11, 3, sequence_length),
    StructureImport::onnx("SequenceMap", 17, 3, sequence_map),
    StructureImport::onnx("SplitToSequence", 11, 3, split_to_sequence),
];

type Outputs = Result<Vec<Value>, Fault>;

/// Elements that an operator may make of one tensor: each is a node.
const ELEMENTS_MAX: usize = 4096;

fn sequence_input(cx: &NodeCx<'_, '_>, position: usize) -> Result<Vec<Value>, Fault> {
    match cx.value(position)? {
        Value::Sequence(elements) => Ok(elements),
        other => Err(Fault::Invalid(format!("input {position} is {}; a sequence was expected", other.kind()))),
    }
}

/// A place from 0 to `last`; negative ones count from the end of a list of `length` elements.
fn place(cx: &NodeCx<'_, '_>, position: usize, length: usize, last: usize) -> Result<usize, Fault> {
    let given = cx.require_int(cx.tensor_input(position)?, "a place in a sequence")?;
    let counted = if given < 0 { given.saturating_add(length as i64) } else { given };
    usize::try_from(counted)
        .ok()
        .filter(|&place| place <= last)
        .ok_or_else(|| Fault::Invalid(format!("place {given} is not in a sequence of {length} elements")))
}

/// The last place of a list that must have one.
fn last_place(elements: &[Value]) -> Result<usize, Fault> {
    elements.len().checked_sub(1).ok_or_else(|| Fault::Invalid("the sequence is empty".to_string()))
}

fn sequence_construct(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let elements = (0..cx.input_count()).map(|position| cx.value(position)).collect::<Result<_, _>>()?;
    Ok(vec![Value::Sequence(elements)])
}

fn sequence_empty(cx: &mut NodeCx<'_, '_>) -> Outputs {
    cx.int("dtype", 1)?;
    Ok(vec![Value::Sequence(Vec::new())])
}

fn sequence_at(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let elements = sequence_input(cx, 0)?;
    let at = place(cx, 1, elements.len(), last_place(&elements)?)?;
    Ok(elements.into_iter().skip(at).take(1).collect())
}

fn sequence_insert(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let mut elements = sequence_input(cx, 0)?;
    // An element may also go after the last one.
    let at = match cx.optional(2) {
        Some(_) => place(cx, 2, elements.len(), elements.len())?,
        None => elements.len(),
    };
    elements.insert(at, cx.value(1)?);
    Ok(vec![Value::Sequence(elements)])
}

fn sequence_erase(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let mut elements = sequence_input(cx, 0)?;
    let at = match cx.optional(1) {
        Some(_) => place(cx, 1, elements.len(), last_place(&elements)?)?,
        None => last_place(&elements)?,
    };
    elements.remove(at);
    Ok(vec![Value::Sequence(elements)])
}

fn sequence_length(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let length = sequence_input(cx, 0)?.len() as i64;
    Ok(vec![cx.int_scalar(length).into()])
}

/// The body once for each element.
fn sequence_map(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let body: &GraphProto =
        cx.attributes().graph("body")?.ok_or_else(|| Fault::Invalid("attribute 'body' is missing".to_string()))?;
    let length = sequence_input(cx, 0)?.len();
    let inputs: Vec<Value> = (0..cx.input_count()).map(|position| cx.value(position)).collect::<Result<_, _>>()?;
    let mut outputs: Vec<Vec<Value>> = vec![Vec::new(); body.output.len()];
    for at in 0..length {
        let parameters = inputs.iter().map(|input| match input {
            Value::Sequence(elements) => elements.get(at).cloned().ok_or_else(|| {
                Fault::Invalid(format!("a sequence has {} elements; {length} were expected", elements.len()))
            }),
            other => Ok(other.clone()),
        });
        let parameters: Vec<Value> = parameters.collect::<Result<_, _>>()?;
        for (output, value) in outputs.iter_mut().zip(cx.inline(body, &parameters)?) {
            output.push(value);
        }
    }
    Ok(outputs.into_iter().map(Value::Sequence).collect())
}

/// Parts of a tensor along an axis: of the sizes given, or one each.
fn split_to_sequence(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let x = cx.tensor_input(0)?;
    let axis = cx.axis(cx.int("axis", 0)?, cx.rank(x))?;
    let keeps_axis = cx.flag("keepdims", true)?;
    let size = cx.number(&cx.dims(x)[axis], "the size of the axis that is split")?;
    let (sizes, is_given) = match cx.optional(1) {
        Some(split) => (part_sizes(cx, split, size)?, true),
        None => (vec![1; size.min(ELEMENTS_MAX + 1)], false),
    };
    if sizes.len() > ELEMENTS_MAX {
        return Err(Fault::Unsupported(format!("{size} elements; {ELEMENTS_MAX} or fewer are covered")));
    }
    let mut start = 0;
    let mut elements = Vec::new();
    for size in sizes {
        let mut part = cx.slice_axis(x, axis, Dim::from(start), Dim::from(size))?;
        if !is_given && !keeps_axis {
            part = cx.squeeze(part, &[axis])?;
        }
        elements.push(part.into());
        start += size;
    }
    Ok(vec![Value::Sequence(elements)])
}

/// The sizes of parts of `total`: as listed, or all equal to a scalar but for the last.
fn part_sizes(cx: &NodeCx<'_, '_>, split: ValueId, total: usize) -> Result<Vec<usize>, Fault> {
    let given = cx.require_ints(split, "the sizes of the parts")?;
    let sizes: Option<Vec<usize>> = given.iter().map(|&size| usize::try_from(size).ok()).collect();
    let fault = || Fault::Invalid(format!("parts of {given:?} do not make up {total}"));
    let sizes = sizes.ok_or_else(fault)?;
    if cx.rank(split) > 0 {
        let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
        return if sum == Some(total) { Ok(sizes) } else { Err(fault()) };
    }
    let size = sizes.first().copied().filter(|&size| size > 0).ok_or_else(fault)?;
    if total.div_ceil(size) > ELEMENTS_MAX {
        return Ok(vec![1; ELEMENTS_MAX + 1]);
    }
    Ok((0..total).step_by(size).map(|start| size.min(total - start)).collect())
}

fn concat_from_sequence(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let elements = sequence_input(cx, 0)?;
    let is_new_axis = cx.flag("new_axis", false)?;
    let axis = cx.attributes().int("axis")?.ok_or_else(|| Fault::Invalid("attribute 'axis' is missing".to_string()))?;
    let mut parts = Vec::new();
    for element in &elements {
        let part = element
            .tensor()
            .ok_or_else(|| Fault::Unsupported(format!("an element is {}; only tensors are covered", element.kind())))?;
        let rank = cx.rank(part) + usize::from(is_new_axis);
        let axis = cx.axis(axis, rank)?;
        parts.push((if is_new_axis { cx.unsqueeze(part, &[axis])? } else { part }, axis));
    }
    let Some(&(_, axis)) = parts.first() else {
        return Err(Fault::Invalid("the sequence is empty; it must have an element".to_string()));
    };
    let parts: Vec<ValueId> = parts.into_iter().map(|(part, _)| part).collect();
    Ok(vec![cx.concat(&parts, axis)?.into()])
}

fn optional(cx: &mut NodeCx<'_, '_>) -> Outputs {
    // The type of an element that is not there matters to nobody.
    cx.attributes().raw("type");
    Ok(vec![cx.optional_value(0).unwrap_or(Value::Nothing)])
}

fn optional_get_element(cx: &mut NodeCx<'_, '_>) -> Outputs {
    match cx.value(0)? {
        Value::Nothing => Err(Fault::Invalid("the optional has no element".to_string())),
        element => Ok(vec![element]),
    }
}

fn optional_has_element(cx: &mut NodeCx<'_, '_>) -> Outputs {
    let has_element = !matches!(cx.optional_value(0), None | Some(Value::Nothing));
    let tensor = Tensor::from_bools(Vec::new(), &[has_element]).map_err(|error| Fault::Invalid(error.to_string()))?;
    Ok(vec![cx.tensor(tensor).into()])
}
