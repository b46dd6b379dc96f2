//! A request against a model's inputs: which value each dim has. Sizes that stand alone name their dim; sizes that are
//! expressions are checked once their symbols are known. Equal values are no evidence that two dims are one.

use bytes::Bytes;
use precast_tensor::{Bindings, DType, Dim, Symbol, Tensor};

use crate::error::SessionError;
use crate::interface::Interface;

/// One input of a request: borrowed bytes with their Type, wherever they came from.
#[derive(Clone, Copy, Debug)]
pub struct Argument<'a> {
    /// Element type.
    pub dtype: DType,
    /// Sizes.
    pub shape: &'a [usize],
    /// Elements in row-major order.
    pub bytes: &'a [u8],
}

impl<'a> From<&'a Tensor> for Argument<'a> {
    fn from(tensor: &'a Tensor) -> Argument<'a> {
        Argument { dtype: tensor.dtype(), shape: tensor.shape(), bytes: tensor.as_bytes() }
    }
}

/// An input as a Binding compares it with that of an earlier request.
#[derive(Clone, Copy)]
pub(crate) struct InputForm<'a> {
    pub(crate) dtype: DType,
    pub(crate) shape: &'a [usize],
    /// Bytes that are there.
    pub(crate) bytes: usize,
}

impl<'a> From<&Argument<'a>> for InputForm<'a> {
    fn from(argument: &Argument<'a>) -> InputForm<'a> {
        InputForm { dtype: argument.dtype, shape: argument.shape, bytes: argument.bytes.len() }
    }
}

/// Bytes of a tensor; the largest number where that overflows, which no memory has.
pub(crate) fn bytes_of(dtype: DType, shape: &[usize]) -> usize {
    shape.iter().fold(dtype.size_bytes(), |bytes, &size| bytes.saturating_mul(size))
}

/// Kernels read elements, so each input must begin at a multiple of their size.
pub(crate) fn is_aligned(arguments: &[Argument<'_>]) -> bool {
    arguments.iter().all(|argument| is_aligned_for(argument.bytes, argument.dtype))
}

/// Whether bytes begin at a multiple of an element's size. No bytes may begin anywhere.
pub(crate) fn is_aligned_for(bytes: &[u8], dtype: DType) -> bool {
    bytes.is_empty() || bytes.as_ptr().addr() & (dtype.size_bytes() - 1) == 0
}

/// Inputs as tensors of their own.
pub(crate) fn tensors_of(arguments: &[Argument<'_>]) -> Result<Vec<Tensor>, SessionError> {
    let tensor = |argument: &Argument<'_>| {
        let bytes = Bytes::copy_from_slice(argument.bytes);
        Ok(Tensor::new(argument.dtype, argument.shape.to_vec(), bytes)?.aligned())
    };
    arguments.iter().map(tensor).collect()
}

/// What a size of an input is.
#[derive(Clone, Debug)]
enum Size {
    Number(usize),
    /// The dim of this position.
    Dim(usize),
    Expression(Dim),
}

/// The inputs of a model, ready to compare requests with.
#[derive(Debug)]
pub(crate) struct Unifier {
    inputs: Vec<(DType, Vec<Size>)>,
    names: Vec<String>,
    symbols: Vec<Symbol>,
    ranges: Vec<(i64, i64, i64)>,
    has_expressions: bool,
}

/// Values of dims, in the order of the interface.
pub(crate) type DimValues = Vec<i64>;

/// A dim that no input has given a value yet.
const UNKNOWN: i64 = i64::MIN;

impl Unifier {
    pub(crate) fn new(interface: &Interface) -> Unifier {
        let symbols: Vec<Symbol> = interface.dims.iter().map(|dim| Symbol::from(dim.symbol.as_str())).collect();
        let size = |dim: &Dim| match (dim.as_usize(), dim.as_symbol()) {
            (Some(number), _) => Size::Number(number),
            (None, Some(symbol)) => match symbols.iter().position(|known| known == symbol) {
                Some(position) => Size::Dim(position),
                None => Size::Expression(dim.clone()),
            },
            (None, None) => Size::Expression(dim.clone()),
        };
        let inputs: Vec<(DType, Vec<Size>)> =
            interface.inputs.iter().map(|input| (input.ty.dtype, input.ty.dims.iter().map(size).collect())).collect();
        let has_expressions =
            inputs.iter().any(|(_, sizes)| sizes.iter().any(|size| matches!(size, Size::Expression(_))));
        Unifier {
            names: interface.inputs.iter().map(|input| input.name.clone()).collect(),
            ranges: interface.dims.iter().map(|dim| dim.range).collect(),
            inputs,
            symbols,
            has_expressions,
        }
    }

    /// Each input must have the bytes that its shape says.
    pub(crate) fn check_sizes(&self, arguments: &[Argument<'_>]) -> Result<(), SessionError> {
        for (position, argument) in arguments.iter().enumerate() {
            let elements = argument.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
            let bytes = elements.and_then(|elements| elements.checked_mul(argument.dtype.size_bytes()));
            if bytes != Some(argument.bytes.len()) {
                let name = self.names.get(position).map_or(position.to_string(), |name| format!("'{name}'"));
                return Err(SessionError::Request(format!(
                    "input {name} has {} bytes; its shape {:?} of {} needs {}",
                    argument.bytes.len(),
                    argument.shape,
                    argument.dtype.name(),
                    bytes.map_or("more than there are addresses".to_string(), |bytes| bytes.to_string())
                )));
            }
        }
        Ok(())
    }

    /// Values of all dims, or what contradicts what.
    pub(crate) fn unify(&self, arguments: &[Argument<'_>]) -> Result<DimValues, SessionError> {
        if arguments.len() != self.inputs.len() {
            let (found, expected) = (arguments.len(), self.inputs.len());
            return Err(SessionError::Request(format!("{found} inputs are given where {expected} are expected")));
        }
        let mut values = vec![UNKNOWN; self.symbols.len()];
        for (position, ((dtype, sizes), argument)) in self.inputs.iter().zip(arguments).enumerate() {
            if argument.dtype != *dtype || argument.shape.len() != sizes.len() {
                return Err(self.misfit(position, argument));
            }
            for (axis, (size, &found)) in sizes.iter().zip(argument.shape).enumerate() {
                match size {
                    Size::Number(number) if *number == found => {}
                    Size::Dim(dim) if values[*dim] == found as i64 => {}
                    Size::Dim(dim) if values[*dim] == UNKNOWN => values[*dim] = found as i64,
                    Size::Dim(dim) => return Err(self.conflict(*dim, (position, axis), arguments)),
                    Size::Expression(_) => {}
                    Size::Number(_) => return Err(self.misfit(position, argument)),
                }
            }
        }
        if self.has_expressions {
            self.solve_expressions(arguments, &mut values);
            self.check_expressions(arguments, &values)?;
        }
        self.check_ranges(&values)?;
        Ok(values)
    }

    /// Bindings of values.
    pub(crate) fn bindings(&self, values: &[i64]) -> Bindings {
        self.symbols.iter().zip(values).map(|(symbol, &value)| (symbol.as_str(), value)).collect()
    }

    fn known(&self, values: &[i64]) -> Bindings {
        let known = self.symbols.iter().zip(values).filter(|&(_, &value)| value != UNKNOWN);
        known.map(|(symbol, &value)| (symbol.as_str(), value)).collect()
    }

    /// Gives dims values that follow from a size in which they are the only unknown, until no more do.
    fn solve_expressions(&self, arguments: &[Argument<'_>], values: &mut [i64]) {
        while values.contains(&UNKNOWN) {
            let before = values.to_vec();
            for ((_, sizes), argument) in self.inputs.iter().zip(arguments) {
                for (size, &found) in sizes.iter().zip(argument.shape) {
                    let Size::Expression(dim) = size else { continue };
                    let unknown = |symbol: &Symbol| self.symbols.iter().position(|known| known == symbol);
                    let mut unknowns = dim.symbols().into_iter().filter_map(|symbol| unknown(&symbol));
                    let mut unknowns = unknowns.by_ref().filter(|&position| values[position] == UNKNOWN);
                    let (Some(position), None) = (unknowns.next(), unknowns.next()) else { continue };
                    drop(unknowns);
                    let bindings = self.known(values);
                    let solved = solve_linear(dim, &self.symbols[position], &bindings, found as i64);
                    values[position] = solved.unwrap_or(UNKNOWN);
                }
            }
            if values == before {
                return;
            }
        }
    }

    fn check_expressions(&self, arguments: &[Argument<'_>], values: &[i64]) -> Result<(), SessionError> {
        let bindings = self.known(values);
        for (position, ((_, sizes), argument)) in self.inputs.iter().zip(arguments).enumerate() {
            for (axis, (size, &found)) in sizes.iter().zip(argument.shape).enumerate() {
                let Size::Expression(dim) = size else { continue };
                let name = &self.names[position];
                match dim.eval(&bindings) {
                    Some(value) if value == found as i64 => {}
                    Some(value) => {
                        return Err(SessionError::Request(format!(
                            "axis {axis} of input '{name}' is {found}; {dim} is {value} with {bindings}"
                        )));
                    }
                    None => {
                        return Err(SessionError::Request(format!(
                            "no input has {dim} of axis {axis} of '{name}' by itself; give its dims numbers when the \
                             model is opened"
                        )));
                    }
                }
            }
        }
        Ok(())
    }

    fn check_ranges(&self, values: &[i64]) -> Result<(), SessionError> {
        for ((symbol, &value), &(lo, hi, multiple)) in self.symbols.iter().zip(values).zip(&self.ranges) {
            if value == UNKNOWN {
                return Err(SessionError::Request(format!(
                    "no input has {symbol} by itself; give it a number when the model is opened"
                )));
            }
            if value < lo || value > hi || (multiple > 1 && value % multiple != 0) {
                return Err(SessionError::OutOfRange(format!(
                    "{symbol} = {value} lies outside {lo}..={hi} (multiples of {multiple})"
                )));
            }
        }
        Ok(())
    }

    fn misfit(&self, position: usize, argument: &Argument<'_>) -> SessionError {
        let (dtype, sizes) = &self.inputs[position];
        let expected: Vec<String> = sizes
            .iter()
            .map(|size| match size {
                Size::Number(number) => number.to_string(),
                Size::Dim(dim) => self.symbols[*dim].to_string(),
                Size::Expression(dim) => dim.to_string(),
            })
            .collect();
        let found: Vec<String> = argument.shape.iter().map(ToString::to_string).collect();
        SessionError::Request(format!(
            "input '{}' is {}[{}]; the model expects {}[{}]",
            self.names[position],
            argument.dtype.name(),
            found.join(","),
            dtype.name(),
            expected.join(",")
        ))
    }

    /// Two axes that should be equal and are not.
    fn conflict(&self, dim: usize, at: (usize, usize), arguments: &[Argument<'_>]) -> SessionError {
        let mut places = self.inputs.iter().enumerate().flat_map(|(position, (_, sizes))| {
            sizes.iter().enumerate().map(move |(axis, size)| (position, axis, size))
        });
        let is_dim = |size: &Size| matches!(size, Size::Dim(found) if *found == dim);
        let first = places.find(|(_, _, size)| is_dim(size)).map_or(at, |(position, axis, _)| (position, axis));
        let place = |(position, axis): (usize, usize)| {
            format!("axis {axis} of input '{}' is {}", self.names[position], arguments[position].shape[axis])
        };
        SessionError::Request(format!("{} and {}; both are {}", place(first), place(at), self.symbols[dim]))
    }
}

/// The one value of a symbol for which a size has this value, if the size is linear in it.
fn solve_linear(dim: &Dim, symbol: &Symbol, bindings: &Bindings, found: i64) -> Option<i64> {
    let at = |value: i64| {
        let mut bindings = bindings.clone();
        bindings.insert(symbol, value);
        dim.eval(&bindings)
    };
    let (start, slope) = (at(0)?, at(1)? - at(0)?);
    let is_linear = slope != 0 && (found - start) % slope == 0;
    let value = if is_linear { (found - start) / slope } else { return None };
    // A size with divisions may be linear between 0 and 1 only; then more than one value would fit.
    let fits = at(value)? == found && at(2)? - at(1)? == slope && at(value + 1)? == found + slope;
    fits.then_some(value)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::interface::SymbolicPort;

    fn unifier(types: &[&str]) -> Unifier {
        let port =
            |(position, ty): (usize, &&str)| SymbolicPort { name: format!("x{position}"), ty: ty.parse().unwrap() };
        Unifier::new(&Interface::of_inputs(types.iter().enumerate().map(port).collect(), "test"))
    }

    fn unify(types: &[&str], shapes: &[&[usize]]) -> Result<DimValues, String> {
        let arguments: Vec<Argument<'_>> =
            shapes.iter().map(|shape| Argument { dtype: DType::F32, shape, bytes: &[] }).collect();
        unifier(types).unify(&arguments).map_err(|error| error.to_string())
    }

    #[test]
    fn dims_take_their_values_from_any_input() {
        assert_eq!(unify(&["f32[n,2]", "f32[]", "f32[3,m]"], &[&[5, 2], &[], &[3, 7]]), Ok(vec![5, 7]));
        assert_eq!(unify(&["f32[p + s]", "f32[p]", "f32[s]"], &[&[5], &[2], &[3]]), Ok(vec![2, 3]));
    }

    #[test]
    fn a_conflict_names_both_places() {
        assert_eq!(
            unify(&["f32[n,2]", "f32[n]"], &[&[5, 2], &[4]]).unwrap_err(),
            "axis 0 of input 'x0' is 5 and axis 0 of input 'x1' is 4; both are n"
        );
        let error = unify(&["f32[p + s]", "f32[p]", "f32[s]"], &[&[6], &[2], &[3]]).unwrap_err();
        assert!(error.starts_with("axis 0 of input 'x0' is 6; "), "{error}");
        assert_eq!(unify(&["f32[n,2]"], &[&[5, 3]]).unwrap_err(), "input 'x0' is f32[5,3]; the model expects f32[n,2]");
    }

    #[test]
    fn expressions_are_solved_where_one_value_fits_and_never_guessed() {
        assert_eq!(unify(&["f32[2*n + 1]"], &[&[7]]), Ok(vec![3]));
        assert_eq!(unify(&["f32[p + s]", "f32[p]"], &[&[6], &[2]]), Ok(vec![2, 4]));
        for (ty, size) in [("f32[2*n]", 7), ("f32[n // 2]", 3), ("f32[p + s]", 4)] {
            let error = unify(&[ty], &[&[size]]).unwrap_err();
            assert!(error.contains("'x0'"), "{error}");
        }
    }

    #[test]
    fn equal_numbers_do_not_make_dims_equal() {
        assert_eq!(unify(&["f32[n,4]", "f32[4,m]"], &[&[4, 4], &[4, 9]]), Ok(vec![4, 9]));
    }
}
