//! Adapter files of ONNX Runtime (`*.onnx_adapter`): values for initializers that are inputs too, by name. The format is a
//! FlatBuffer of two kinds of tables, read here field by field: every offset is checked against the file before it is
//! followed, nothing is followed twice, and tensors share the file's bytes.
//!
//! The crate `flatbuffers` would bring a verifier, but readers of tables are unsafe code there, which this room has none of.

use std::collections::BTreeSet;
use std::path::Path;

use bytes::Bytes;
use precast_tensor::{DType, Tensor};

use super::element_type::ElementType;
use super::error::{Quoted, ReadError};
use super::hold::read_whole;
use super::limits::{Budget, Limits};
use super::tensor_data::TensorSize;

/// The four bytes behind the offset of the root table.
const IDENTIFIER: &[u8; 4] = b"TORT";
/// The only version of the format that there is.
const FORMAT_VERSION: i32 = 1;

/// An adapter: values of parameters, by name.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterFile {
    /// The version that its author gave it.
    pub adapter_version: i32,
    /// The version of the model that its author made it for.
    pub model_version: i32,
    /// Parameters in the order of the file; no name is there twice.
    pub parameters: Vec<(String, Tensor)>,
}

impl AdapterFile {
    /// Reads a file. Its bytes are ours: whoever writes to the file later does not change an adapter that is in use.
    pub fn open(path: &Path, limits: &Limits) -> Result<AdapterFile, ReadError> {
        AdapterFile::from_bytes(read_whole(path, limits)?, limits)
    }

    /// Reads an adapter from memory.
    pub fn from_bytes(bytes: Bytes, limits: &Limits) -> Result<AdapterFile, ReadError> {
        let words = Words(&bytes);
        if words.slice(4, IDENTIFIER.len()) != Some(IDENTIFIER.as_slice()) {
            return Err(fault("the file", "it does not begin as an adapter; 'TORT' was expected at byte 4"));
        }
        let root = words.follow(0).and_then(|place| words.table(place));
        let root = root.ok_or_else(|| fault("the file", "its first table lies outside of it"))?;
        let number = |field: Field| root.number(field).ok_or_else(|| outside("the file", field));
        let version = number(Field::FormatVersion)?;
        if version != FORMAT_VERSION {
            let problem = format!("its format has version {version}; {FORMAT_VERSION} was expected");
            return Err(ReadError::Unsupported { place: "the adapter file".to_string(), problem });
        }
        let mut names = BTreeSet::new();
        let mut parameters = Vec::new();
        for (position, table) in parameter_tables(&root, limits)?.into_iter().enumerate() {
            let table = table.ok_or_else(|| fault(format!("parameter {position}"), "it lies outside of the file"))?;
            let (name, tensor) = read_parameter(&table, position, &bytes, limits)?;
            if !names.insert(name.clone()) {
                return Err(fault(format!("parameter {}", Quoted::new(&name)), "it is there twice"));
            }
            parameters.push((name, tensor));
        }
        let (adapter_version, model_version) = (number(Field::AdapterVersion)?, number(Field::ModelVersion)?);
        Ok(AdapterFile { adapter_version, model_version, parameters })
    }
}

/// Fields of the two tables, by the words that errors use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    FormatVersion,
    AdapterVersion,
    ModelVersion,
    Parameters,
    Name,
    Dims,
    DataType,
    RawData,
}

impl Field {
    /// Its number in its table, and its name in the format.
    fn row(self) -> (usize, &'static str) {
        match self {
            Field::FormatVersion => (0, "format_version"),
            Field::AdapterVersion => (1, "adapter_version"),
            Field::ModelVersion => (2, "model_version"),
            Field::Parameters => (3, "parameters"),
            Field::Name => (0, "name"),
            Field::Dims => (1, "dims"),
            Field::DataType => (2, "data_type"),
            Field::RawData => (3, "raw_data"),
        }
    }
}

/// The tables of parameters; none where one lies outside of the file. As many as the limits allow.
fn parameter_tables<'b>(root: &Table<'b>, limits: &Limits) -> Result<Vec<Option<Table<'b>>>, ReadError> {
    let Some((start, count)) = root.list(Field::Parameters, 4).ok_or_else(|| outside("the file", Field::Parameters))?
    else {
        return Ok(Vec::new());
    };
    let value = u64::try_from(count).unwrap_or(u64::MAX);
    if value > limits.tensors {
        let (place, budget, limit) = ("the adapter file".to_string(), Budget::Tensors, limits.tensors);
        return Err(ReadError::OverLimit { place, budget, value, limit });
    }
    let words = root.words;
    let table = |number: usize| words.table(words.follow(start.checked_add(number.checked_mul(4)?)?)?);
    Ok((0..count).map(table).collect())
}

fn read_parameter(
    table: &Table<'_>,
    position: usize,
    file: &Bytes,
    limits: &Limits,
) -> Result<(String, Tensor), ReadError> {
    let name = read_name(table, position, limits)?;
    let place = format!("parameter {}", Quoted::new(&name));
    let number = table.number(Field::DataType).ok_or_else(|| outside(&place, Field::DataType))?;
    let dtype = element_type(number).map_err(|problem| fault(&place, problem))?;
    let (dims_at, rank) = given_list(table, Field::Dims, 8, &place)?;
    let rank = rank.min(usize::try_from(limits.rank).unwrap_or(usize::MAX).saturating_add(1));
    let dims: Option<Vec<i64>> =
        (0..rank).map(|axis| table.words.i64(dims_at.checked_add(axis.checked_mul(8)?)?)).collect();
    let size = TensorSize::new(&name, dtype, &dims.ok_or_else(|| outside(&place, Field::Dims))?, limits)?;
    let (start, length) = given_list(table, Field::RawData, 1, &place)?;
    let TensorSize { shape, stored_bytes, .. } = size;
    if length != stored_bytes {
        let problem = format!("raw_data has {length} bytes; {stored_bytes} were expected for {dtype} {shape:?}");
        return Err(fault(place, problem));
    }
    let end = start.checked_add(length).filter(|&end| end <= file.len());
    let end = end.ok_or_else(|| outside(&place, Field::RawData))?;
    let tensor = Tensor::new(dtype, shape, file.slice(start..end));
    Ok((name, tensor.map_err(|error| fault(place, error.to_string()))?))
}

fn read_name(table: &Table<'_>, position: usize, limits: &Limits) -> Result<String, ReadError> {
    let place = format!("parameter {position}");
    let (start, length) = given_list(table, Field::Name, 1, &place)?;
    let value = u64::try_from(length).unwrap_or(u64::MAX);
    if value > limits.name {
        return Err(ReadError::OverLimit { place, budget: Budget::Name, value, limit: limits.name });
    }
    // A zero ends a text, beside its length.
    let bytes = length.checked_add(1).and_then(|length| table.words.slice(start, length));
    let bytes = bytes.and_then(|bytes| bytes.strip_suffix(&[0])).ok_or_else(|| outside(&place, Field::Name))?;
    match std::str::from_utf8(bytes) {
        Ok("") => Err(fault(place, "its name is empty")),
        Ok(name) => Ok(name.to_string()),
        Err(_) => Err(fault(place, "its name is not UTF-8")),
    }
}

/// Types whose elements are whole bytes of which every value is one.
fn element_type(number: i32) -> Result<DType, String> {
    match ElementType::from_onnx(number)? {
        ElementType::Number(dtype) if dtype != DType::Bool && dtype.bits() >= 8 => Ok(dtype),
        ElementType::Number(_) | ElementType::Complex(_) | ElementType::String => {
            Err(format!("element type {number} is not one of adapters; floats and integers of whole bytes are"))
        }
    }
}

/// Where the elements of a list begin and how many there are; an error where the table has none.
fn given_list(table: &Table<'_>, field: Field, size: usize, place: &str) -> Result<(usize, usize), ReadError> {
    let list = table.list(field, size).ok_or_else(|| outside(place, field))?;
    list.ok_or_else(|| fault(place, format!("it has no {}", field.row().1)))
}

fn fault(place: impl Into<String>, problem: impl Into<String>) -> ReadError {
    ReadError::Adapter { place: place.into(), problem: problem.into() }
}

fn outside(place: &str, field: Field) -> ReadError {
    fault(place, format!("its field {} lies outside of the file", field.row().1))
}

/// Bytes that are read as numbers at any place; none where that lies outside.
#[derive(Clone, Copy)]
struct Words<'b>(&'b [u8]);

impl<'b> Words<'b> {
    fn slice(self, start: usize, length: usize) -> Option<&'b [u8]> {
        self.0.get(start..start.checked_add(length)?)
    }

    fn array<const N: usize>(self, start: usize) -> Option<[u8; N]> {
        self.slice(start, N)?.try_into().ok()
    }

    fn u16(self, start: usize) -> Option<usize> {
        self.array(start).map(|bytes| usize::from(u16::from_le_bytes(bytes)))
    }

    fn u32(self, start: usize) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array(start)?)).ok()
    }

    fn i32(self, start: usize) -> Option<i32> {
        self.array(start).map(i32::from_le_bytes)
    }

    fn i64(self, start: usize) -> Option<i64> {
        self.array(start).map(i64::from_le_bytes)
    }

    /// Where an offset leads, which counts from itself.
    fn follow(self, start: usize) -> Option<usize> {
        start.checked_add(self.u32(start)?)
    }

    /// The table that begins there: with how far before it (or behind, if negative) the list of its fields lies.
    fn table(self, start: usize) -> Option<Table<'b>> {
        let back = i64::from(self.i32(start)?);
        let fields = usize::try_from(i64::try_from(start).ok()?.checked_sub(back)?).ok()?;
        let (fields_bytes, table_bytes) = (self.u16(fields)?, self.u16(fields.checked_add(2)?)?);
        self.slice(fields, fields_bytes)?;
        self.slice(start, table_bytes)?;
        Some(Table { words: self, start, fields, fields_bytes, table_bytes })
    }
}

/// A table, which lies inside the file, and so does the list of its fields.
struct Table<'b> {
    words: Words<'b>,
    start: usize,
    fields: usize,
    fields_bytes: usize,
    table_bytes: usize,
}

impl Table<'_> {
    /// Where a field of four bytes lies; an inner none where the table does not have it.
    fn place(&self, field: Field) -> Option<Option<usize>> {
        // Two lengths come before the fields.
        let entry = field.row().0.checked_add(2)?.checked_mul(2)?;
        if entry.checked_add(2)? > self.fields_bytes {
            return Some(None);
        }
        match self.words.u16(self.fields.checked_add(entry)?)? {
            0 => Some(None),
            offset if offset.checked_add(4)? <= self.table_bytes => Some(Some(self.start.checked_add(offset)?)),
            _ => None,
        }
    }

    /// A number, which is 0 where it is not written.
    fn number(&self, field: Field) -> Option<i32> {
        match self.place(field)? {
            Some(place) => self.words.i32(place),
            None => Some(0),
        }
    }

    /// Where the elements of a list begin and how many of so many bytes there are, all inside the file; an inner none where
    /// the table has no such list.
    fn list(&self, field: Field, size: usize) -> Option<Option<(usize, usize)>> {
        let Some(place) = self.place(field)? else { return Some(None) };
        let list = self.words.follow(place)?;
        let (count, start) = (self.words.u32(list)?, list.checked_add(4)?);
        self.words.slice(start, count.checked_mul(size)?)?;
        Some(Some((start, count)))
    }
}
