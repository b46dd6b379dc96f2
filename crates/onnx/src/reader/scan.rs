//! A flat walk over the wire format before the decoder runs.
//!
//! The decoder allocates as it goes, so everything that makes it allocate is counted here first, in one pass with an
//! explicit stack and without touching tensor bytes. What passes is well-formed framing within [`Limits`]; the
//! decoder still checks UTF-8 and scalar encodings.

use super::error::{Quoted, ReadError};
use super::limits::{Budget, Limits};
use super::schema::{Field, Kind, field_of};

/// Checks the framing and the budgets of one encoded message of kind `root`.
pub(super) fn scan(bytes: &[u8], root: Kind, limits: &Limits) -> Result<(), ReadError> {
    let mut scan = Scan { bytes, at: 0, stack: Vec::new(), limits, tally: Tally::default() };
    scan.enter(root, bytes.len())?;
    while let Some(frame) = scan.stack.last() {
        if scan.at == frame.end {
            scan.leave()?;
        } else {
            scan.field()?;
        }
    }
    Ok(())
}

/// Heap bytes of an empty `String` or of a list element that holds one.
const STRING_BYTES: u64 = 24;

/// One message being walked.
struct Frame {
    kind: Kind,
    end: usize,
    shape: Shape,
}

/// What a tensor, sparse tensor or declared shape said about its size so far.
#[derive(Default)]
struct Shape {
    rank: u64,
    /// Product of the dims; `None` once it passes `u64`.
    elements: Option<u64>,
    dim_max: u64,
    negative: Option<i64>,
    typed_values: u64,
    /// Byte range of the name, for errors.
    name: Option<(usize, usize)>,
}

/// Totals over the whole file.
#[derive(Default)]
struct Tally {
    nodes: u64,
    values: u64,
    attributes: u64,
    messages: u64,
    list_values: u64,
    tensors: u64,
    functions: u64,
    names: u64,
    metadata: u64,
    graph_depth: u64,
}

struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Frame>,
    limits: &'a Limits,
    tally: Tally,
}

impl Scan<'_> {
    fn enter(&mut self, kind: Kind, end: usize) -> Result<(), ReadError> {
        self.charge(Budget::Messages, 1)?;
        match kind {
            Kind::Node => self.charge(Budget::Nodes, 1)?,
            Kind::Attribute => self.charge(Budget::Attributes, 1)?,
            Kind::Tensor => self.charge(Budget::Tensors, 1)?,
            Kind::Function => self.charge(Budget::Functions, 1)?,
            Kind::ValueInfo => self.charge(Budget::Values, 1)?,
            Kind::Graph => {
                self.tally.graph_depth = self.tally.graph_depth.saturating_add(1);
                // The outermost graph is not a subgraph.
                self.check(Budget::SubgraphDepth, self.tally.graph_depth.saturating_sub(1))?;
            }
            Kind::Dimension => self.count_dim()?,
            Kind::Model
            | Kind::SparseTensor
            | Kind::Type
            | Kind::TensorType
            | Kind::SequenceType
            | Kind::MapType
            | Kind::OpaqueType
            | Kind::Shape
            | Kind::Entry
            | Kind::Metadata
            | Kind::OperatorSet
            | Kind::Training
            | Kind::Annotation
            | Kind::Segment
            | Kind::Sequence
            | Kind::Map
            | Kind::Optional => {}
        }
        let depth = u64::try_from(self.stack.len()).unwrap_or(u64::MAX).saturating_add(1);
        self.check(Budget::MessageDepth, depth)?;
        self.stack.push(Frame { kind, end, shape: Shape { elements: Some(1), ..Shape::default() } });
        Ok(())
    }

    fn leave(&mut self) -> Result<(), ReadError> {
        let Some(frame) = self.stack.pop() else { return Ok(()) };
        match frame.kind {
            Kind::Graph => self.tally.graph_depth = self.tally.graph_depth.saturating_sub(1),
            Kind::Tensor | Kind::SparseTensor => self.check_shape(&frame.shape)?,
            _ => {}
        }
        Ok(())
    }

    /// Checks a tensor once all of it is seen, since its name comes after its dims.
    fn check_shape(&self, shape: &Shape) -> Result<(), ReadError> {
        let name = shape.name.and_then(|(start, end)| self.bytes.get(start..end)).unwrap_or_default();
        let name = String::from_utf8_lossy(name);
        if let Some(dim) = shape.negative {
            return Err(ReadError::tensor(&name, format!("dimension {dim} is negative")));
        }
        if shape.dim_max > self.limits.dim {
            let place = format!("tensor {}", Quoted::new(&name));
            return Err(over_limit(place, Budget::Dim, shape.dim_max, self.limits.dim));
        }
        let Some(elements) = shape.elements else {
            return Err(ReadError::tensor(&name, "the product of its dims passes 2^64"));
        };
        // Typed fields grow up to eightfold when decoded, so their count is held against the shape here. A complex
        // element is two values, and no element type takes more.
        if shape.typed_values > elements.saturating_mul(2) {
            let problem = format!("{} typed values, expected the {elements} of its dims", shape.typed_values);
            return Err(ReadError::tensor(&name, problem));
        }
        Ok(())
    }

    /// Reads one tag and its value, entering it when it is a message.
    fn field(&mut self) -> Result<(), ReadError> {
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok().filter(|&number| number > 0 && number < 1 << 29);
        let Some(number) = number else {
            return Err(self.wire(format!("field tag {tag} is out of range")));
        };
        let kind = self.stack.last().map_or(Kind::Model, |frame| frame.kind);
        let field = field_of(kind, number);
        match tag & 7 {
            0 => {
                let value = self.varint()?;
                self.scalar(field, value)
            }
            1 => self.skip(8).and_then(|()| self.scalar(field, 0)),
            5 => self.skip(4).and_then(|()| self.scalar(field, 0)),
            2 => {
                let length = self.varint()?;
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                let end = self.end_after(length)?;
                self.delimited(field, number, end)
            }
            3 | 4 => Err(self.wire(format!("field {number} is a group, which ONNX does not use"))),
            other => Err(self.wire(format!("field {number} has wire type {other}, expected 0, 1, 2 or 5"))),
        }
    }

    fn scalar(&mut self, field: Field, value: u64) -> Result<(), ReadError> {
        match field {
            Field::Message(_) | Field::Name | Field::Text | Field::Metadata | Field::Output | Field::Strings => {
                Err(self.wire("a number where text or a message is expected".into()))
            }
            Field::TensorName => Err(self.wire("a number where a name is expected".into())),
            Field::Dims => self.dim(value),
            Field::Varints | Field::Fixed32 => self.charge(Budget::ListValues, 1),
            Field::TypedVarints | Field::Typed32 | Field::Typed64 => self.add_typed(1),
            Field::Other => Ok(()),
        }
    }

    fn delimited(&mut self, field: Field, number: u32, end: usize) -> Result<(), ReadError> {
        let start = self.at;
        let length = u64::try_from(end.saturating_sub(start)).unwrap_or(u64::MAX);
        match field {
            Field::Message(child) => return self.enter(child, end),
            Field::Dims => {
                while self.at < end {
                    let value = self.varint()?;
                    self.dim(value)?;
                }
                if self.at != end {
                    return Err(self.wire(format!("packed field {number} ends inside a number")));
                }
            }
            Field::Name => self.charge_name(length)?,
            Field::Output => {
                self.charge(Budget::Values, 1)?;
                self.charge_name(length)?;
            }
            Field::TensorName => {
                self.charge_name(length)?;
                if let Some(frame) = self.stack.last_mut() {
                    frame.shape.name = Some((start, end));
                }
            }
            Field::Text => self.charge(Budget::Names, length.saturating_add(STRING_BYTES))?,
            Field::Metadata => self.charge(Budget::Metadata, length.saturating_add(STRING_BYTES))?,
            Field::Strings => self.charge(Budget::ListValues, 1)?,
            Field::Varints => self.charge(Budget::ListValues, count_varints(self.bytes.get(start..end)))?,
            Field::Fixed32 => self.charge(Budget::ListValues, length / 4)?,
            Field::TypedVarints => self.add_typed(count_varints(self.bytes.get(start..end)))?,
            Field::Typed32 => self.add_typed(length / 4)?,
            Field::Typed64 => self.add_typed(length / 8)?,
            Field::Other => {}
        }
        self.at = end;
        Ok(())
    }

    fn dim(&mut self, value: u64) -> Result<(), ReadError> {
        self.count_dim()?;
        if let Some(frame) = self.stack.last_mut() {
            // A protobuf int64 below zero travels as its two's complement.
            let dim = value.cast_signed();
            if dim < 0 {
                frame.shape.negative = Some(dim);
            } else {
                frame.shape.dim_max = frame.shape.dim_max.max(value);
            }
            frame.shape.elements = match value {
                0 => Some(0),
                _ => frame.shape.elements.and_then(|elements| elements.checked_mul(value)),
            };
        }
        Ok(())
    }

    fn count_dim(&mut self) -> Result<(), ReadError> {
        let Some(frame) = self.stack.last_mut() else {
            return Ok(());
        };
        frame.shape.rank = frame.shape.rank.saturating_add(1);
        let rank = frame.shape.rank;
        self.check(Budget::Rank, rank)
    }

    fn add_typed(&mut self, values: u64) -> Result<(), ReadError> {
        if let Some(frame) = self.stack.last_mut() {
            frame.shape.typed_values = frame.shape.typed_values.saturating_add(values);
        }
        Ok(())
    }

    fn charge_name(&mut self, length: u64) -> Result<(), ReadError> {
        self.check(Budget::Name, length)?;
        self.charge(Budget::Names, length.saturating_add(STRING_BYTES))
    }

    fn charge(&mut self, budget: Budget, amount: u64) -> Result<(), ReadError> {
        let total = match budget {
            Budget::Messages => &mut self.tally.messages,
            Budget::Nodes => &mut self.tally.nodes,
            Budget::Values => &mut self.tally.values,
            Budget::Attributes => &mut self.tally.attributes,
            Budget::ListValues => &mut self.tally.list_values,
            Budget::Tensors => &mut self.tally.tensors,
            Budget::Functions => &mut self.tally.functions,
            Budget::Names => &mut self.tally.names,
            Budget::Metadata => &mut self.tally.metadata,
            // The other budgets are maxima, not sums.
            _ => return self.check(budget, amount),
        };
        *total = total.saturating_add(amount);
        let total = *total;
        self.check(budget, total)
    }

    fn check(&self, budget: Budget, value: u64) -> Result<(), ReadError> {
        let limit = self.limits.get(budget);
        if value <= limit {
            return Ok(());
        }
        let place = match self.stack.last() {
            Some(frame) => format!("byte {}, in {}", self.at, frame.kind.name()),
            None => format!("byte {}", self.at),
        };
        Err(over_limit(place, budget, value, limit))
    }

    fn varint(&mut self) -> Result<u64, ReadError> {
        let end = self.stack.last().map_or(self.bytes.len(), |frame| frame.end);
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let Some(&byte) = self.bytes.get(self.at).filter(|_| self.at < end) else {
                return Err(self.wire("the message ends inside a number".into()));
            };
            self.at = self.at.saturating_add(1);
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                if shift == 63 && byte > 1 {
                    break;
                }
                return Ok(value);
            }
        }
        Err(self.wire("a number has more than 64 bits".into()))
    }

    fn skip(&mut self, length: usize) -> Result<(), ReadError> {
        self.at = self.end_after(length)?;
        Ok(())
    }

    /// The position `length` bytes on, if the enclosing message reaches that far.
    fn end_after(&self, length: usize) -> Result<usize, ReadError> {
        let limit = self.stack.last().map_or(self.bytes.len(), |frame| frame.end);
        match self.at.checked_add(length) {
            Some(end) if end <= limit => Ok(end),
            _ => {
                let left = limit.saturating_sub(self.at);
                Err(self.wire(format!("a field of {length} bytes where {left} are left")))
            }
        }
    }

    fn wire(&self, problem: String) -> ReadError {
        let offset = u64::try_from(self.at).unwrap_or(u64::MAX);
        let message = self.stack.last().map_or("the file", |frame| frame.kind.name());
        ReadError::Wire { offset, message, problem }
    }
}

fn over_limit(place: String, budget: Budget, value: u64, limit: u64) -> ReadError {
    ReadError::OverLimit { place, budget, value, limit }
}

/// Each varint ends with the one byte whose top bit is clear.
fn count_varints(bytes: Option<&[u8]>) -> u64 {
    let count = bytes.unwrap_or_default().iter().filter(|&&byte| byte < 0x80).count();
    u64::try_from(count).unwrap_or(u64::MAX)
}
