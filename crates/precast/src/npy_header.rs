//! The header of a NumPy array: magic, format number, length, and a Python dict literal with three keys.

use precast_tensor::DType;

use crate::npy::NpyError;

const MAGIC: &[u8] = b"\x93NUMPY";
/// Headers are padded so that the data starts at a multiple of this.
const ALIGNMENT: usize = 64;
/// NumPy refuses longer headers unless told otherwise; so do we.
const HEADER_BYTES_MAX: usize = 10_000;
/// Axes of an array; NumPy's own limit.
const RANK_MAX: usize = 64;

/// What a header says.
#[derive(Debug, PartialEq)]
pub struct Header {
    /// Element type in NumPy's spelling.
    pub descr: String,
    /// Whether the first axis varies fastest.
    pub is_fortran: bool,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Where the data starts.
    pub data_at: usize,
}

/// The header at the start of a `.npy` file.
pub fn parse(bytes: &[u8]) -> Result<Header, NpyError> {
    let short = || NpyError::Header("it ends inside its header".to_string());
    if !bytes.starts_with(MAGIC) {
        return Err(NpyError::Header("it does not start with the NumPy magic".to_string()));
    }
    let rest = &bytes[MAGIC.len()..];
    let (length, text_at) = match *rest.first().ok_or_else(short)? {
        1 => (usize::from(u16::from_le_bytes(field(rest, 2).ok_or_else(short)?)), MAGIC.len() + 4),
        2 | 3 => (u32::from_le_bytes(field(rest, 2).ok_or_else(short)?) as usize, MAGIC.len() + 6),
        format => return Err(NpyError::Header(format!("format {format} is unknown"))),
    };
    if length > HEADER_BYTES_MAX {
        return Err(NpyError::Header(format!("a header of {length} bytes is too long")));
    }
    let text = bytes.get(text_at..text_at + length).ok_or_else(short)?;
    let text = std::str::from_utf8(text).map_err(|_| NpyError::Header("its header is not text".to_string()))?;
    parse_dict(text, text_at + length)
        .ok_or_else(|| NpyError::Header(format!("its header is {:?}", text.chars().take(80).collect::<String>())))
}

/// The header of an array in C order.
pub fn print(dtype: DType, shape: &[usize]) -> Vec<u8> {
    let mut sizes: String = shape.iter().map(|size| format!("{size},")).collect();
    if shape.len() > 1 {
        sizes.pop();
    }
    let mut dict = format!("{{'descr': '{}', 'fortran_order': False, 'shape': ({sizes}), }}", descr(dtype));
    let prefix = MAGIC.len() + 4;
    let padding = (prefix + dict.len() + 1).next_multiple_of(ALIGNMENT) - prefix - dict.len() - 1;
    dict.push_str(&" ".repeat(padding));
    dict.push('\n');
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend((dict.len() as u16).to_le_bytes());
    header.extend(dict.as_bytes());
    header
}

/// The element type of a NumPy spelling. Raw bytes, and integers that hold narrower ones, are what is expected of them.
pub fn element_type(descr: &str, expected: Option<DType>) -> Result<DType, NpyError> {
    let unsupported = || NpyError::ElementType(descr.to_string());
    let (order, name) = descr.split_at_checked(1).ok_or_else(unsupported)?;
    let one_byte = name.ends_with('1') && name.len() == 2;
    if order != "<" && !(one_byte || name.starts_with('V') && order == "|") {
        return Err(unsupported());
    }
    let narrow = |allowed: &[DType]| expected.filter(|dtype| allowed.contains(dtype));
    let dtype = match name {
        "b1" => DType::Bool,
        "u1" => narrow(&[DType::U4, DType::U2]).unwrap_or(DType::U8),
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "i1" => narrow(&[DType::I4, DType::I2]).unwrap_or(DType::I8),
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "V2" => DType::BF16,
        "V1" | "f1" => expected.filter(|dtype| descr_of_raw(*dtype)).ok_or_else(unsupported)?,
        _ => return Err(unsupported()),
    };
    Ok(dtype)
}

/// Types of one byte that NumPy has no name for.
fn descr_of_raw(dtype: DType) -> bool {
    descr(dtype) == "|V1"
}

fn descr(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "|b1",
        DType::U8 | DType::U4 | DType::U2 => "|u1",
        DType::U16 => "<u2",
        DType::U32 => "<u4",
        DType::U64 => "<u8",
        DType::I8 | DType::I4 | DType::I2 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::BF16 => "|V2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::F8E4M3Fn | DType::F8E4M3FnUz | DType::F8E5M2 | DType::F8E5M2FnUz | DType::F8E8M0 | DType::F4E2M1 => {
            "|V1"
        }
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`: these keys in any order, and nothing else.
fn parse_dict(text: &str, data_at: usize) -> Option<Header> {
    let mut rest = text.trim().strip_prefix('{')?.strip_suffix('}')?.trim();
    let (mut descr, mut is_fortran, mut shape) = (None, None, None);
    while !rest.is_empty() {
        let (key, after) = quoted(rest)?;
        rest = after.trim_start().strip_prefix(':')?.trim_start();
        match key {
            "descr" => {
                let (value, after) = quoted(rest)?;
                (descr, rest) = (Some(value.to_string()), after);
            }
            "fortran_order" => {
                let after = rest.strip_prefix("True").map(|after| (true, after));
                let (value, after) = after.or_else(|| rest.strip_prefix("False").map(|after| (false, after)))?;
                (is_fortran, rest) = (Some(value), after);
            }
            "shape" => {
                let (sizes, after) = rest.strip_prefix('(')?.split_once(')')?;
                (shape, rest) = (Some(parse_sizes(sizes)?), after);
            }
            _ => return None,
        }
        rest = rest.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(after) => after.trim_start(),
            None if rest.is_empty() => rest,
            None => return None,
        };
    }
    Some(Header { descr: descr?, is_fortran: is_fortran?, shape: shape?, data_at })
}

fn quoted(text: &str) -> Option<(&str, &str)> {
    let quote = text.chars().next().filter(|quote| matches!(quote, '\'' | '"'))?;
    text[1..].split_once(quote)
}

fn parse_sizes(text: &str) -> Option<Vec<usize>> {
    let text = text.trim();
    if text.is_empty() {
        return Some(Vec::new());
    }
    let sizes: Vec<&str> = text.strip_suffix(',').unwrap_or(text).split(',').collect();
    if sizes.len() > RANK_MAX {
        return None;
    }
    // Python 2 wrote long numbers with an L.
    sizes.into_iter().map(|size| size.trim().trim_end_matches('L').parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_header(format: u8, text: &str) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([format, 0]);
        match format {
            1 => bytes.extend((text.len() as u16).to_le_bytes()),
            _ => bytes.extend((text.len() as u32).to_le_bytes()),
        }
        bytes.extend(text.as_bytes());
        bytes
    }

    #[test]
    fn all_formats_and_spellings_are_read() {
        let text = r#"{"shape": (3, 4L), 'fortran_order': True, 'descr': '<f4'}"#;
        for format in 1..=3 {
            let bytes = with_header(format, text);
            let expected =
                Header { descr: "<f4".to_string(), is_fortran: true, shape: vec![3, 4], data_at: bytes.len() };
            assert_eq!(parse(&bytes).unwrap(), expected);
        }
    }

    #[test]
    fn printed_headers_parse_and_end_aligned() {
        for shape in [&[][..], &[5], &[5, 6], &[1; 64]] {
            let bytes = print(DType::I64, shape);
            let header = parse(&bytes).unwrap();
            assert_eq!((header.shape.as_slice(), header.data_at % ALIGNMENT), (shape, 0));
        }
    }

    #[test]
    fn malformed_headers_are_errors() {
        let good = "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
        let cases = [
            with_header(4, good),
            with_header(1, &good.replace("(3,)", "(-3,)")),
            with_header(1, &good.replace("(3,)", "(99999999999999999999,)")),
            with_header(1, &good.replace("(3,)", "(3")),
            with_header(1, &good.replace("False", "Perhaps")),
            with_header(1, &good.replace("'descr'", "'other'")),
            with_header(1, &good.replace("'<f4'", "[('a', '<f4')]")),
            with_header(1, "{}"),
            with_header(1, "'"),
            with_header(1, "{é"),
            with_header(2, &" ".repeat(HEADER_BYTES_MAX + 1)),
            b"\x93NUMPY\x02\x00\xff\xff\xff\xff".to_vec(),
            b"\x93NUMPY".to_vec(),
            b"PK".to_vec(),
            Vec::new(),
        ];
        for case in cases {
            assert!(matches!(parse(&case), Err(NpyError::Header(_))), "{}", String::from_utf8_lossy(&case));
        }
    }

    #[test]
    fn types_without_a_counterpart_are_named() {
        for descr in ["<c8", ">f4", "<U3", "|O", "<M8[s]", "V", "", "|V1", "é4"] {
            assert!(matches!(element_type(descr, None), Err(NpyError::ElementType(_))), "{descr}");
        }
        assert_eq!(element_type("|V1", Some(DType::F8E5M2)).unwrap(), DType::F8E5M2);
        assert_eq!(element_type("|u1", Some(DType::U4)).unwrap(), DType::U4);
        assert_eq!(element_type("<i8", Some(DType::U4)).unwrap(), DType::I64);
    }
}
