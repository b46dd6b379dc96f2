//! Small pieces of kernel text: offsets from coordinates, and how many elements lie together.

/// The offset of the element at flat index `index` over `axes` (size and stride, outermost first). The outermost size is not
/// part of the text.
pub fn offset_text(index: &str, axes: &[(usize, usize)]) -> String {
    let mut merged: Vec<(usize, usize)> = Vec::new();
    for &(size, stride) in axes.iter().rev().filter(|(size, _)| *size != 1) {
        match merged.last_mut() {
            Some(inner) if stride == inner.1 * inner.0 => inner.0 *= size,
            _ => merged.push((size, stride)),
        }
    }
    let mut terms = Vec::new();
    let mut below = 1;
    for (position, &(size, stride)) in merged.iter().enumerate() {
        let mut term = index.to_string();
        if below > 1 {
            term = format!("{term} / {below}");
        }
        if position + 1 < merged.len() {
            term = format!("{term} % {size}");
        }
        if stride > 0 {
            terms.push(if stride == 1 { term } else { format!("{term} * {stride}") });
        }
        below *= size;
    }
    if terms.is_empty() { "0".to_string() } else { terms.join(" + ") }
}

/// The largest of 8, 4, 2, 1 up to `most` that divides all numbers.
pub fn common_width(most: usize, numbers: &[usize]) -> usize {
    [8, 4, 2].into_iter().find(|width| *width <= most && numbers.iter().all(|number| number % width == 0)).unwrap_or(1)
}

/// Strides of an operand along the axes of the result it is broadcast to. `None` where it is no such operand.
pub fn broadcast_strides(shape: &[usize], strides: &[usize], result: &[usize]) -> Option<Vec<usize>> {
    let missing = result.len().checked_sub(shape.len())?;
    let mut all = vec![0; result.len()];
    for axis in 0..shape.len() {
        if shape[axis] != 1 && shape[axis] != result[axis + missing] {
            return None;
        }
        all[axis + missing] = if shape[axis] == 1 { 0 } else { strides[axis] };
    }
    Some(all)
}
