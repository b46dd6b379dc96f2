//! Constants written out element by element: integers in decimal, bools as words, floats as the shortest decimal that
//! reads back to the same bits, NaN with its bits.

use precast_tensor::{DType, Tensor};

/// Constants of at most this many elements are written out.
pub const INLINE_ELEMENTS_MAX: usize = 16;

/// Whether a constant is written out rather than named by digest.
pub fn is_inline(tensor: &Tensor) -> bool {
    tensor.shape().iter().product::<usize>() <= INLINE_ELEMENTS_MAX
}

/// A tensor with all its elements, as a constant is written out: `f32[2] [0.5, -inf]`.
pub fn print_tensor(tensor: &Tensor) -> String {
    format!("{} {}", tensor.type_(), print_elements(tensor))
}

/// The elements in brackets.
pub fn print_elements(tensor: &Tensor) -> String {
    let dtype = tensor.dtype();
    let items: Vec<String> = match tensor.to_i128_vec() {
        Ok(elements) if dtype.is_bool() => elements.iter().map(|&element| (element != 0).to_string()).collect(),
        Ok(elements) => elements.iter().map(i128::to_string).collect(),
        Err(_) => {
            let codes = tensor.as_bytes().chunks_exact(dtype.size_bytes());
            tensor.to_f64_vec().iter().zip(codes).map(|(&element, code)| print_float(dtype, element, code)).collect()
        }
    };
    format!("[{}]", items.join(", "))
}

/// Every float type but f64 has its elements among those of f32, whose shortest decimals are shorter.
fn print_float(dtype: DType, element: f64, code: &[u8]) -> String {
    match dtype {
        _ if element.is_nan() => {
            let digits: String = code.iter().rev().map(|byte| format!("{byte:02x}")).collect();
            format!("nan:{digits}")
        }
        DType::F64 => format!("{element:?}"),
        _ => format!("{:?}", element as f32),
    }
}

/// A tensor of a shape from its elements' texts; the message says which text does not fit.
pub fn read_elements(dtype: DType, shape: &[usize], items: &[&str]) -> Result<Tensor, String> {
    let count = shape.iter().try_fold(1usize, |count, &extent| count.checked_mul(extent));
    if count != Some(items.len()) {
        return Err(format!("{} elements found, which is not what the shape has", items.len()));
    }
    let mut bytes = Vec::with_capacity(items.len() * dtype.size_bytes());
    for item in items {
        let code = read_element(dtype, item).ok_or_else(|| format!("'{item}' is not an element of type {dtype}"))?;
        bytes.extend(code);
    }
    Tensor::new(dtype, shape, bytes.into()).map_err(|error| error.to_string())
}

fn read_element(dtype: DType, item: &str) -> Option<Vec<u8>> {
    if let Some(digits) = item.strip_prefix("nan:") {
        return read_nan(dtype, digits);
    }
    if dtype.is_bool() {
        return Some(vec![u8::from(item.parse::<bool>().ok()?)]);
    }
    if let Some((least, most)) = dtype.int_range() {
        let value: i128 = item.parse().ok()?;
        let tensor = (least..=most).contains(&value).then(|| Tensor::from_i128(dtype, [], &[value]).ok())??;
        return Some(tensor.as_bytes().to_vec());
    }
    let value = match dtype {
        DType::F32 => f64::from(item.parse::<f32>().ok()?),
        _ => item.parse::<f64>().ok()?,
    };
    let is_infinite = item.trim_start_matches('-').eq_ignore_ascii_case("inf");
    let tensor = Tensor::from_f64(dtype, [], &[value], false).ok()?;
    // Rounding is fine; a number that leaves the range of the type is a mistake.
    let rounded = tensor.to_f64_vec()[0];
    (!rounded.is_nan() && rounded.is_infinite() == is_infinite).then(|| tensor.as_bytes().to_vec())
}

fn read_nan(dtype: DType, digits: &str) -> Option<Vec<u8>> {
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit));
    if !is_hex || digits.len() != 2 * dtype.size_bytes() {
        return None;
    }
    let code = u64::from_str_radix(digits, 16).ok()?.to_le_bytes()[..dtype.size_bytes()].to_vec();
    let tensor = Tensor::new(dtype, [], code.clone().into()).ok()?;
    tensor.to_f64_vec()[0].is_nan().then_some(code)
}
