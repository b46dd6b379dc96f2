//! Elements in kernel text: what their types are called, how they are loaded, rounded and stored, and literals.

use precast_tensor::{DType, Tensor};

/// Type of an element in memory. `None`: kernels only move elements of this type.
pub fn memory_type(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool | DType::U8 | DType::U4 | DType::U2 => "u8",
        DType::I8 | DType::I4 | DType::I2 => "i8",
        DType::U16 => "u16",
        DType::U32 => "u32",
        DType::U64 => "u64",
        DType::I16 => "i16",
        DType::I32 => "i32",
        DType::I64 => "i64",
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 | DType::F4E2M1 => {
            return None;
        }
    })
}

/// Type of an element in registers: 16-bit floats are f32 there. `None` where kernels do not compute.
pub fn value_type(dtype: DType) -> Option<&'static str> {
    match dtype {
        DType::Bool => Some("bool"),
        DType::F16 | DType::BF16 => Some("f32"),
        _ => memory_type(dtype),
    }
}

/// Whether elements have fewer bits than the byte they lie in: kernels convert them but do not compute with them.
pub fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::U4 | DType::U2 | DType::I4 | DType::I2)
}

/// Type of a word with the size of an element, for moving.
pub fn word_type(dtype: DType) -> &'static str {
    match dtype.size_bytes() {
        1 => "u8",
        2 => "u16",
        4 => "u32",
        _ => "u64",
    }
}

/// The value of an element that text reads from memory.
pub fn load(dtype: DType, element: &str) -> String {
    match dtype {
        DType::F16 | DType::BF16 => format!("to_f32({element})"),
        DType::Bool => format!("({element} != 0)"),
        _ => element.to_string(),
    }
}

/// The element that a value becomes in memory.
pub fn element(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F16 => format!("to_f16({value})"),
        DType::BF16 => format!("to_bf16({value})"),
        DType::Bool => format!("(u8)({value})"),
        _ => format!("({})({value})", memory_type(dtype).unwrap_or("u8")),
    }
}

/// A value rounded to the precision of its element type.
pub fn round(dtype: DType, value: &str) -> String {
    match dtype {
        DType::F16 => format!("round_f16({value})"),
        DType::BF16 => format!("round_bf16({value})"),
        _ => value.to_string(),
    }
}

/// A number as a value of a float type.
pub fn float_literal(dtype: DType, x: f64) -> String {
    let is_wide = dtype == DType::F64;
    if x.is_nan() {
        return if is_wide { "((f64)NOT_A_NUMBER)".to_string() } else { "NOT_A_NUMBER".to_string() };
    }
    let x = if is_wide { x } else { f64::from(x as f32) };
    if x.is_infinite() {
        let sign = if x < 0.0 { "-" } else { "" };
        return if is_wide { format!("({sign}(f64)INFINITE)") } else { format!("({sign}INFINITE)") };
    }
    let digits = if is_wide { format!("{x:?}") } else { format!("{:?}f", x as f32) };
    if x.is_sign_negative() { format!("({digits})") } else { digits }
}

/// A number as a value of an integer type; it wraps.
pub fn int_literal(dtype: DType, x: i128) -> String {
    let name = memory_type(dtype).unwrap_or("i64");
    match dtype {
        DType::I64 | DType::U64 if i32::try_from(x).is_err() => format!("(({name})0x{:x}ull)", x as u64),
        _ => format!("(({name}){x})", x = x as i64),
    }
}

/// The value of a constant of one element; `None` where kernels do not compute.
pub fn constant_literal(tensor: &Tensor) -> Option<String> {
    let dtype = tensor.dtype();
    value_type(dtype)?;
    if dtype.is_float() {
        return Some(float_literal(dtype, *tensor.to_f64_vec().first()?));
    }
    let value = *tensor.to_i128_vec().ok()?.first()?;
    Some(if dtype.is_bool() { (value != 0).to_string() } else { int_literal(dtype, value) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_name_the_same_number() {
        assert_eq!(float_literal(DType::F32, 0.1), "0.1f");
        assert_eq!(float_literal(DType::F64, -1e-20), "(-1e-20)");
        assert_eq!(float_literal(DType::F16, f64::NEG_INFINITY), "(-INFINITE)");
        assert_eq!(int_literal(DType::I64, i128::from(i64::MIN)), "((i64)0x8000000000000000ull)");
        assert_eq!(int_literal(DType::I8, -3), "((i8)-3)");
    }
}
