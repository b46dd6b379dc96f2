//! What an Import can know of values: Types, constants, elements of shape vectors as Dims, and what to do where the form
//! of the Graph depends on something that is not known.

use precast_ir::graph::SizeRead;
use precast_ir::{Op, ValueId};
use precast_tensor::{DType, Dim, SymbolRange, Tensor, Type};

use super::cx::NodeCx;
use super::error::{Fault, inputs_behind};

/// What is known of an integer that is no size.
const ANY_SIGN: SymbolRange = SymbolRange::new(-SymbolRange::ANY.hi, SymbolRange::ANY.hi);

/// What is known of values.
impl NodeCx<'_, '_> {
    /// Type of a value.
    pub fn ty(&self, value: ValueId) -> Type {
        self.builder.graph.ty(value).clone()
    }

    /// Element type of a value.
    pub fn dtype(&self, value: ValueId) -> DType {
        self.builder.graph.ty(value).dtype
    }

    /// Dims of a value.
    pub fn dims(&self, value: ValueId) -> Vec<Dim> {
        self.builder.graph.ty(value).dims.clone()
    }

    /// Rank of a value.
    pub fn rank(&self, value: ValueId) -> usize {
        self.builder.graph.ty(value).dims.len()
    }

    /// The size of an axis that a value must have.
    pub fn dim(&self, value: ValueId, axis: usize) -> Result<Dim, Fault> {
        let ty = self.ty(value);
        let out_of_range = || Fault::Invalid(format!("an operand is {ty}; {} axes or more were expected", axis + 1));
        ty.dims.get(axis).cloned().ok_or_else(out_of_range)
    }

    /// An axis from 0 of a value of `rank` dims; negative ones count from the end.
    pub fn axis(&self, axis: i64, rank: usize) -> Result<usize, Fault> {
        let shifted = if axis < 0 { axis + rank as i64 } else { axis };
        usize::try_from(shifted)
            .ok()
            .filter(|&axis| axis < rank)
            .ok_or_else(|| Fault::Invalid(format!("axis {axis} is out of range for rank {rank}")))
    }

    /// Axes from 0, each once.
    pub fn axes(&self, axes: &[i64], rank: usize) -> Result<Vec<usize>, Fault> {
        let normal: Vec<usize> = axes.iter().map(|&axis| self.axis(axis, rank)).collect::<Result<_, _>>()?;
        for (position, axis) in normal.iter().enumerate() {
            if normal[..position].contains(axis) {
                return Err(Fault::Invalid(format!("axis {axis} is given twice")));
            }
        }
        Ok(normal)
    }

    /// The number of a dim whose value decides the form of the Graph.
    pub fn number(&self, dim: &Dim, what: &str) -> Result<usize, Fault> {
        match dim.as_const() {
            Some(number) => usize::try_from(number)
                .map_err(|_| Fault::Invalid(format!("{what} is {number}; it cannot be negative"))),
            None => Err(self.undecided(dim, what)),
        }
    }

    /// What would give a number to a dim that has none: numbers for dims of inputs, or values that are read at run time.
    fn undecided(&self, dim: &Dim, what: &str) -> Fault {
        let symbols = dim.symbols();
        let Some(symbol) = symbols.iter().find(|symbol| !self.builder.is_free(symbol)) else {
            return Fault::NeedsNumber { dim: dim.to_string(), what: what.to_string() };
        };
        let reads = self.builder.graph.sizes.iter().filter(|read| symbols.contains(&read.symbol));
        let values: Vec<ValueId> = reads.map(|read| read.value).collect();
        if !values.is_empty() {
            return Fault::NeedsValue { values, what: what.to_string() };
        }
        let values = self.builder.deciders(&symbols);
        if inputs_behind(&self.builder.graph, &values).is_empty() {
            return Fault::Unsupported(format!("{what} is {dim}, and {symbol} is only known while the model runs"));
        }
        Fault::NeedsValue { values, what: what.to_string() }
    }

    /// The tensor of a value that is constant.
    pub fn constant(&self, value: ValueId) -> Option<Tensor> {
        self.builder.graph.constant(value).cloned()
    }

    /// The tensor of a value whose elements decide the form of the Graph.
    pub fn require_constant(&self, value: ValueId, what: &str) -> Result<Tensor, Fault> {
        self.constant(value).ok_or_else(|| Fault::NeedsValue { values: vec![value], what: what.to_string() })
    }

    /// The dims of a value that must have so many.
    pub fn dims_of<const RANK: usize>(&self, value: ValueId, what: &str) -> Result<[Dim; RANK], Fault> {
        <[Dim; RANK]>::try_from(self.dims(value))
            .map_err(|dims| Fault::Invalid(format!("{what} has rank {}; {RANK} was expected", dims.len())))
    }

    /// Integers that decide the form of the Graph, such as axes.
    pub fn require_ints(&self, value: ValueId, what: &str) -> Result<Vec<i64>, Fault> {
        if let Some(content) = self.builder.content(value)
            && let Some(ints) = content.iter().map(Dim::as_const).collect::<Option<Vec<i64>>>()
        {
            return Ok(ints);
        }
        let tensor = self.require_constant(value, what)?;
        let elements = tensor.to_i128_vec().map_err(|error| Fault::Invalid(format!("{what}: {error}")))?;
        Ok(elements.into_iter().map(|element| element.clamp(i64::MIN.into(), i64::MAX.into()) as i64).collect())
    }

    /// One integer that decides the form of the Graph.
    pub fn require_int(&self, value: ValueId, what: &str) -> Result<i64, Fault> {
        match self.require_ints(value, what)?[..] {
            [int] => Ok(int),
            ref ints => Err(Fault::Invalid(format!("{what} has {} elements; one was expected", ints.len()))),
        }
    }

    /// Floats that decide the form of the Graph, such as scales.
    pub fn require_floats(&self, value: ValueId, what: &str) -> Result<Vec<f64>, Fault> {
        let tensor = self.require_constant(value, what)?;
        Ok(tensor.to_f64_vec())
    }

    /// Elements of an integer value as Dims, where they are known while importing.
    pub fn content(&self, value: ValueId) -> Option<Vec<Dim>> {
        self.builder.content(value)
    }

    /// Elements of an integer value as Dims. Those that are only known at run time become symbols that are read then, and
    /// may have any sign: for uses that are exact whatever the numbers turn out to be.
    pub fn require_dims(&mut self, value: ValueId, what: &str) -> Result<Vec<Dim>, Fault> {
        self.read_elements(value, what, ANY_SIGN)
    }

    /// `require_dims` of a scalar or of a vector of one element.
    pub fn require_dim(&mut self, value: ValueId, what: &str) -> Result<Dim, Fault> {
        only(self.require_dims(value, what)?, what)
    }

    /// `require_dims` for sizes, which are never negative.
    pub fn require_sizes(&mut self, value: ValueId, what: &str) -> Result<Vec<Dim>, Fault> {
        self.read_elements(value, what, SymbolRange::ANY)
    }

    /// `require_sizes` of a scalar or of a vector of one element.
    pub fn require_size(&mut self, value: ValueId, what: &str) -> Result<Dim, Fault> {
        only(self.require_sizes(value, what)?, what)
    }

    /// Elements of an integer value as Dims, for uses where some numbers have a meaning of their own, such as -1 in a
    /// shape: where they are not known, the inputs they come from must be frozen. Only values that a run decides become
    /// symbols, and those must then be plain sizes.
    pub fn sizes_or_value(&mut self, value: ValueId, what: &str) -> Result<Vec<Dim>, Fault> {
        if self.builder.content(value).is_none() && self.builder.can_become_known(value) {
            return Err(Fault::NeedsValue { values: vec![value], what: what.to_string() });
        }
        self.require_sizes(value, what)
    }

    fn read_elements(&mut self, value: ValueId, what: &str, range: SymbolRange) -> Result<Vec<Dim>, Fault> {
        if let Some(content) = self.builder.content(value) {
            return Ok(content);
        }
        let ty = self.ty(value);
        if !ty.dtype.is_int() {
            return Err(Fault::Invalid(format!("{what} is {}; integers were expected", ty.dtype)));
        }
        // Known elements beside unknown ones stay known.
        let parts = match self.builder.graph.producer(value) {
            Some((node, _)) if matches!(node.op, Op::Reshape(_)) => Some(node.inputs.clone()),
            Some((node, _)) if matches!(node.op, Op::Concat(_)) && ty.rank() == 1 => Some(node.inputs.clone()),
            _ => None,
        };
        let dims: Vec<Dim> = match parts {
            Some(parts) => {
                let parts: Vec<Vec<Dim>> =
                    parts.into_iter().map(|part| self.read_elements(part, what, range)).collect::<Result<_, _>>()?;
                parts.concat()
            }
            None => {
                let count = self.number(&ty.element_count(), &format!("the number of elements of {what}"))?;
                (0..count).map(|element| self.read_element(value, element, range)).collect()
            }
        };
        self.builder.set_content(value, dims.clone());
        Ok(dims)
    }

    fn read_element(&mut self, value: ValueId, element: usize, range: SymbolRange) -> Dim {
        let symbol = self.builder.fresh_symbol("size", range);
        self.builder.graph.sizes.push(SizeRead { symbol: symbol.clone(), value, element });
        Dim::symbol(symbol)
    }

    /// A symbol for a size that a node decides when it runs, `most` or less where that is known.
    pub fn fresh_dim(&mut self, stem: &str, most: Option<i64>) -> Dim {
        let range = most.map_or(SymbolRange::ANY, |most| SymbolRange::new(0, most));
        Dim::symbol(self.builder.fresh_symbol(stem, range))
    }

    /// A name that no other part of the Graph uses.
    pub fn fresh_name(&mut self, stem: &str) -> String {
        self.builder.fresh_symbol(stem, SymbolRange::ANY).as_str().to_string()
    }

    /// Whether a value can become known before the model runs, by freezing inputs or giving dims numbers.
    pub fn can_become_known(&self, value: ValueId) -> bool {
        self.builder.can_become_known(value)
    }

    /// The same dim in the simplest form that what is known of its symbols allows.
    pub fn simplify(&self, dim: &Dim) -> Dim {
        dim.simplify(&self.builder.graph.ranges)
    }

    /// Smallest and largest number that a dim may be.
    pub fn bounds(&self, dim: &Dim) -> (i64, i64) {
        dim.bounds(&self.builder.graph.ranges)
    }

    /// A dim over a number that must divide it.
    pub fn divide_exact(&self, dim: &Dim, divisor: i64, what: &str) -> Result<Dim, Fault> {
        if let Some(quotient) = dim.floor_div_exact(&Dim::from(divisor)) {
            return Ok(quotient);
        }
        match dim.as_const() {
            Some(_) => Err(Fault::Invalid(format!("{what} is {dim}, which {divisor} does not divide"))),
            None => Err(self.undecided(dim, what)),
        }
    }

    /// The integer value that a float value was cast from.
    pub fn cast_source(&self, value: ValueId) -> Option<ValueId> {
        match self.builder.graph.producer(value) {
            Some((node, _)) if matches!(node.op, Op::Cast(_)) => {
                node.inputs.first().copied().filter(|&input| self.dtype(input).is_int())
            }
            _ => None,
        }
    }
}

fn only(dims: Vec<Dim>, what: &str) -> Result<Dim, Fault> {
    match <[Dim; 1]>::try_from(dims) {
        Ok([dim]) => Ok(dim),
        Err(dims) => Err(Fault::Invalid(format!("{what} has {} elements; one was expected", dims.len()))),
    }
}
