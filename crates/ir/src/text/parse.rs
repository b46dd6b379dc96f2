//! Parsing graphs. Nodes are added as they are read, so their Types are inferred; a Type in the text that differs is an
//! error. Text from outside may hold anything: nesting is bounded and nothing here panics.

use std::collections::VecDeque;
use std::sync::Arc;

use precast_tensor::{Digest, Symbol, SymbolRange, Tensor, Type};

use super::TextError;
use super::lexer::{Failure, Lexer, too_deep};
use super::literal::read_elements;
use crate::attr::{AttrReader, ConstantSource};
use crate::graph::{Graph, Provenance, SizeRead, ValueId};
use crate::op::Op;

/// Graphs may be nested this deep.
const DEPTH_MAX: usize = 16;
/// A graph in a graph stands in the braces of an attribute list and has braces of its own.
const BRACES_MAX: usize = 2 * DEPTH_MAX - 1;

/// Reads a graph; constants that are not written out come from `constants`.
pub fn parse(text: &str, constants: &dyn ConstantSource) -> Result<Graph, TextError> {
    let result = Parser::new(text, constants, true).whole();
    result.map_err(|failure| {
        let before = text.get(..failure.offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        TextError {
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            message: failure.message,
        }
    })
}

/// Reads a graph that is an attribute.
pub fn parse_body(text: &str, constants: &dyn ConstantSource) -> Option<Graph> {
    Parser::new(text, constants, false).whole().ok()
}

struct Parser<'a> {
    text: &'a str,
    lexer: Lexer<'a>,
    constants: &'a dyn ConstantSource,
    /// Whether a failing body is read a second time to find the place. Off within bodies, where it would double the
    /// work with every level.
    locates_in_bodies: bool,
    graph: Graph,
    /// Inputs of the header that are still to be numbered: constants may stand between them.
    inputs: VecDeque<(usize, ValueId, String, Type)>,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str, constants: &'a dyn ConstantSource, locates_in_bodies: bool) -> Parser<'a> {
        let inputs = VecDeque::new();
        Parser { text, lexer: Lexer::new(text), constants, locates_in_bodies, graph: Graph::default(), inputs }
    }

    fn whole(mut self) -> Result<Graph, Failure> {
        if let Some(offset) = too_deep(self.text, BRACES_MAX) {
            return Err(Failure::at(offset, format!("graphs are nested deeper than {DEPTH_MAX}")));
        }
        let ids = self.header()?;
        loop {
            self.add_inputs()?;
            if self.lexer.take("return") {
                break;
            }
            self.definition()?;
        }
        if let Some((offset, value, ..)) = self.inputs.front() {
            return Err(Failure::at(*offset, format!("input {value} is not numbered in order")));
        }
        self.outputs()?;
        for (offset, value) in ids {
            self.known(offset, value)?;
        }
        if !self.lexer.is_at_end() {
            return Err(self.lexer.failure("the end"));
        }
        Ok(self.graph)
    }

    /// Reads up to the opening brace; gives the values that size reads name, which are defined later.
    fn header(&mut self) -> Result<Vec<(usize, ValueId)>, Failure> {
        self.lexer.expect("graph")?;
        self.graph.name = self.lexer.quoted()?;
        self.lexer.expect("(")?;
        while !self.lexer.take(")") {
            let offset = self.lexer.offset();
            let value = self.value_id()?;
            let name = self.lexer.quoted()?;
            self.lexer.expect(":")?;
            let ty = self.ty()?;
            self.inputs.push_back((offset, value, name, ty));
            self.separator(")")?;
        }
        let mut ids = Vec::new();
        if self.lexer.take("where") {
            loop {
                self.clause(&mut ids)?;
                if !self.lexer.take(",") {
                    break;
                }
            }
        }
        self.lexer.expect("{")?;
        Ok(ids)
    }

    /// `n in 1..=64 multiple 8` or `s = %5[0]`.
    fn clause(&mut self, ids: &mut Vec<(usize, ValueId)>) -> Result<(), Failure> {
        let start = self.lexer.offset();
        let symbol = Symbol::new(self.lexer.symbol()?);
        if self.lexer.take("=") {
            let offset = self.lexer.offset();
            let value = self.value_id()?;
            self.lexer.expect("[")?;
            let element = self.lexer.number()?;
            self.lexer.expect("]")?;
            ids.push((offset, value));
            self.graph.sizes.push(SizeRead { symbol, value, element });
            return Ok(());
        }
        self.lexer.expect("in")?;
        let lo = self.lexer.number()?;
        self.lexer.expect("..=")?;
        let hi = self.lexer.number()?;
        let multiple = if self.lexer.take("multiple") { self.lexer.number()? } else { 1 };
        match self.graph.ranges.insert(symbol, SymbolRange { lo, hi, multiple }) {
            None => Ok(()),
            Some(_) => Err(Failure::at(start, "a symbol has one range")),
        }
    }

    /// Numbers the inputs that come next.
    fn add_inputs(&mut self) -> Result<(), Failure> {
        while self.inputs.front().is_some_and(|(_, value, ..)| *value == self.next_id()) {
            if let Some((_, _, name, ty)) = self.inputs.pop_front() {
                self.graph.add_input(name, ty);
            }
        }
        Ok(())
    }

    /// `%3 = constant ..` or `%4, %5 = op(..) {..} : types  # names`; a node without outputs begins with its op.
    fn definition(&mut self) -> Result<(), Failure> {
        let start = self.lexer.offset();
        let mut outputs = Vec::new();
        if self.lexer.starts_with("%") {
            outputs = self.value_list()?;
            self.lexer.expect("=")?;
        }
        for (&output, expected) in outputs.iter().zip(self.graph.values().len()..) {
            if output.0 as usize != expected {
                return Err(Failure::at(start, format!("{output} found where %{expected} is the next value")));
            }
        }
        let op_offset = self.lexer.offset();
        let name = self.lexer.word()?;
        if name == "constant" {
            if outputs.len() != 1 {
                return Err(Failure::at(start, "a constant is one value"));
            }
            let tensor = self.constant()?;
            self.graph.add_constant(tensor);
            return Ok(());
        }
        self.node(&outputs, name, op_offset)
    }

    fn constant(&mut self) -> Result<Tensor, Failure> {
        let ty = self.ty()?;
        let offset = self.lexer.offset();
        let Some(shape) = ty.shape() else {
            return Err(Failure::at(offset, format!("{ty} is not the Type of a constant: its dims are no sizes")));
        };
        if self.lexer.take("@blake3:") {
            let found = self.lexer.word()?;
            let digest: Digest = found.parse().map_err(|_| Failure::at(offset, "a digest has 64 hex digits"))?;
            let Some(tensor) = self.constants.constant(&digest) else {
                return Err(Failure::at(offset, format!("there is no constant with digest {digest}")));
            };
            if tensor.dtype() != ty.dtype || tensor.shape() != shape {
                return Err(Failure::at(offset, format!("the constant with this digest is {}", tensor.type_())));
            }
            return Ok(tensor);
        }
        self.lexer.expect("[")?;
        let mut items = Vec::new();
        while !self.lexer.take("]") {
            items.push(self.lexer.stretch(b",").1);
            self.separator("]")?;
        }
        read_elements(ty.dtype, &shape, &items).map_err(|message| Failure::at(offset, message))
    }

    fn node(&mut self, outputs: &[ValueId], name: &str, op_offset: usize) -> Result<(), Failure> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        if self.lexer.take(".") {
            pairs.push(("func".to_string(), self.lexer.word()?.to_string()));
        }
        let inputs = self.operands()?;
        let mut bodies = Vec::new();
        if self.lexer.take("{") {
            while !self.lexer.take("}") {
                let attribute = self.lexer.word()?;
                self.lexer.expect("=")?;
                let (offset, value) = self.lexer.stretch(b",");
                if value.starts_with("graph") {
                    bodies.push((offset, value));
                }
                pairs.push((attribute.to_string(), value.to_string()));
                self.separator("}")?;
            }
        }
        let mut reader = AttrReader::new(name, &pairs, self.constants);
        let op = Op::parse(name, &mut reader).and_then(|op| reader.finish().map(|()| op));
        let op = op.map_err(|error| {
            self.failure_in(&bodies).unwrap_or_else(|| Failure::at(op_offset, shorten(&error.to_string())))
        })?;
        let types = self.types(outputs.len())?;
        let provenance = self.provenance()?;
        let added = self.graph.add_node(op, &inputs, &provenance);
        let added = added.map_err(|error| Failure::at(op_offset, error.source.to_string()))?;
        if added.len() != outputs.len() {
            let message = format!("{name} has {} outputs, {} are named", added.len(), outputs.len());
            return Err(Failure::at(op_offset, message));
        }
        for (value, (offset, recorded)) in added.into_iter().zip(types) {
            let inferred = self.graph.ty(value);
            if recorded.simplify(&self.graph.ranges) != *inferred {
                return Err(Failure::at(offset, format!("{value} is {inferred}, not {recorded}")));
            }
        }
        Ok(())
    }

    /// Where the first body that does not parse fails.
    fn failure_in(&self, bodies: &[(usize, &str)]) -> Option<Failure> {
        if !self.locates_in_bodies {
            return None;
        }
        bodies.iter().find_map(|(offset, body)| {
            let failure = Parser::new(body, self.constants, true).whole().err()?;
            Some(Failure::at(offset + failure.offset, failure.message))
        })
    }

    fn types(&mut self, count: usize) -> Result<Vec<(usize, Type)>, Failure> {
        let mut types = Vec::new();
        if count == 0 {
            return Ok(types);
        }
        self.lexer.expect(":")?;
        loop {
            types.push((self.lexer.offset(), self.ty()?));
            if !self.lexer.take(",") {
                break;
            }
        }
        if types.len() != count {
            let offset = self.lexer.offset();
            return Err(Failure::at(offset, format!("{} Types for {count} values", types.len())));
        }
        Ok(types)
    }

    fn provenance(&mut self) -> Result<Provenance, Failure> {
        let mut names: Vec<Arc<str>> = Vec::new();
        if self.lexer.take("#") {
            loop {
                names.push(self.lexer.quoted()?.into());
                if !self.lexer.take(",") {
                    break;
                }
            }
        }
        Ok(Provenance::from_names(names))
    }

    fn outputs(&mut self) -> Result<(), Failure> {
        while !self.lexer.take("}") {
            let name = self.lexer.quoted()?;
            let offset = self.lexer.offset();
            let value = self.value_id()?;
            self.known(offset, value)?;
            self.graph.add_output(name, value);
            self.separator("}")?;
        }
        Ok(())
    }

    fn operands(&mut self) -> Result<Vec<ValueId>, Failure> {
        self.lexer.expect("(")?;
        let mut operands = Vec::new();
        while !self.lexer.take(")") {
            let offset = self.lexer.offset();
            let value = self.value_id()?;
            self.known(offset, value)?;
            operands.push(value);
            self.separator(")")?;
        }
        Ok(operands)
    }

    fn value_list(&mut self) -> Result<Vec<ValueId>, Failure> {
        let mut values = vec![self.value_id()?];
        while self.lexer.take(",") {
            values.push(self.value_id()?);
        }
        Ok(values)
    }

    fn value_id(&mut self) -> Result<ValueId, Failure> {
        self.lexer.expect("%")?;
        Ok(ValueId(self.lexer.number()?))
    }

    fn known(&self, offset: usize, value: ValueId) -> Result<(), Failure> {
        if value < self.next_id() { Ok(()) } else { Err(Failure::at(offset, format!("{value} is not defined here"))) }
    }

    fn next_id(&self) -> ValueId {
        ValueId(self.graph.values().len() as u32)
    }

    fn ty(&mut self) -> Result<Type, Failure> {
        let (offset, text) = self.lexer.stretch(b", #\n");
        text.parse().map_err(|error: precast_tensor::ParseTypeError| Failure::at(offset, shorten(&error.to_string())))
    }

    /// A comma, unless `end` comes next.
    fn separator(&mut self, end: &str) -> Result<(), Failure> {
        if self.lexer.starts_with(end) { Ok(()) } else { self.lexer.expect(",") }
    }
}

/// Messages repeat what was found; what was found may be a whole file.
fn shorten(message: &str) -> String {
    const MESSAGE_CHARS: usize = 200;
    match message.char_indices().nth(MESSAGE_CHARS) {
        Some((end, _)) => format!("{}..", &message[..end]),
        None => message.to_string(),
    }
}
