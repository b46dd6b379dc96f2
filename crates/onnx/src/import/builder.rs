//! The Graph under construction with the names in scope. Constants fold as they appear, and small integer tensors are
//! followed as lists of Dims, so that shape arithmetic is gone before any op sees it.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use precast_ir::graph::Provenance;
use precast_ir::work::multiply_adds;
use precast_ir::{Definition, Graph, Node, Op, ValueId, symbolic};
use precast_tensor::{DType, Dim, Symbol, SymbolRange, Tensor, Type};

use crate::reader::{Budget, ReadError};

use super::error::Fault;
use super::value::{Strings, Value, tabulate};

/// Results of this size or less are folded while importing; larger ones are left to the passes and their budget.
const FOLD_BYTES_MAX: usize = 64 << 10;
/// Inputs of a folded node may have this many bytes.
const FOLD_INPUT_BYTES_MAX: usize = 1 << 20;
/// Multiply-adds of a folded node: well below a second of reference evaluation.
const FOLD_WORK_MAX: u64 = 1 << 24;
/// Integer tensors of this many elements or fewer are followed as Dims.
const CONTENT_ELEMENTS_MAX: usize = 64;

/// Names of one function or graph.
#[derive(Default)]
struct Names {
    values: HashMap<String, Value>,
    /// Outputs of nodes that could not be imported.
    missing: BTreeSet<String>,
    /// Optional inputs of a function that its caller left out.
    absent: BTreeSet<String>,
}

/// A Graph under construction.
pub struct Builder {
    /// The Graph so far.
    pub graph: Graph,
    frames: Vec<Names>,
    contents: BTreeMap<ValueId, Vec<Dim>>,
    /// Symbols of the model's inputs, which get numbers before the model runs. All others get theirs while it runs.
    free: BTreeSet<Symbol>,
    /// Inputs of a body whose values no freezing of the model's inputs can make known.
    run_time: BTreeSet<ValueId>,
    /// Bytes that one value may have.
    tensor_bytes_max: u64,
    /// Number of the last fresh symbol; one count for a graph and all bodies in it.
    fresh: Rc<Cell<u32>>,
    /// How many tokens of each row are cached, where the past is a cache with room left.
    pub cache_lengths: Option<ValueId>,
    /// Element types for which attention behind such a cache is one node.
    pub keeps_attention: Vec<DType>,
    /// Whether past keys and values are buffers that present ones are written into.
    pub shares_caches: bool,
}

impl Builder {
    /// An empty scope over an empty graph whose values may have this many bytes.
    pub fn new(name: &str, tensor_bytes_max: u64) -> Builder {
        Builder {
            graph: Graph::new(name),
            frames: vec![Names::default()],
            contents: BTreeMap::new(),
            free: BTreeSet::new(),
            run_time: BTreeSet::new(),
            tensor_bytes_max,
            fresh: Rc::new(Cell::new(0)),
            cache_lengths: None,
            keeps_attention: Vec::new(),
            shares_caches: false,
        }
    }

    /// An empty scope over a body of `outer`, which knows the same symbols.
    pub fn inside(name: &str, outer: &Builder) -> Builder {
        let mut builder = Builder {
            free: outer.free.clone(),
            fresh: outer.fresh.clone(),
            shares_caches: outer.shares_caches,
            ..Builder::new(name, outer.tensor_bytes_max)
        };
        builder.graph.ranges = outer.graph.ranges.clone();
        builder
    }

    /// Adds an input of the model.
    pub fn add_input(&mut self, name: &str, ty: Type) -> ValueId {
        self.free.extend(ty.dims.iter().flat_map(Dim::symbols));
        self.graph.add_input(name, ty)
    }

    /// Adds an input of a body. `is_run_time`: its value is only known while the model runs.
    pub fn add_body_input(&mut self, name: &str, ty: Type, is_run_time: bool) -> ValueId {
        let value = self.graph.add_input(name, ty);
        if is_run_time {
            self.run_time.insert(value);
        }
        value
    }

    /// The tensor of a name in this graph.
    pub fn lookup(&self, name: &str) -> Option<ValueId> {
        self.value(name)?.tensor()
    }

    /// What a name stands for in this graph.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.frame().values.get(name)
    }

    /// Whether a name belongs to a node that could not be imported.
    pub fn is_missing(&self, name: &str) -> bool {
        self.frame().missing.contains(name)
    }

    /// Whether a name is an optional input of a function that its caller left out.
    pub fn is_absent(&self, name: &str) -> bool {
        self.frame().absent.contains(name)
    }

    /// Gives a value a name; false if the name is taken.
    pub fn define(&mut self, name: &str, value: impl Into<Value>) -> bool {
        self.frame_mut().values.insert(name.to_string(), value.into()).is_none()
    }

    /// Marks outputs of a node that could not be imported.
    pub fn mark_missing(&mut self, names: &[String]) {
        self.frame_mut().missing.extend(names.iter().filter(|name| !name.is_empty()).cloned());
    }

    /// Opens a scope of its own for a function's body.
    pub fn enter_function<'n>(&mut self, inputs: impl Iterator<Item = (&'n str, Option<Value>)>) {
        let mut names = Names::default();
        for (name, value) in inputs {
            match value {
                Some(value) => drop(names.values.insert(name.to_string(), value)),
                None => drop(names.absent.insert(name.to_string())),
            }
        }
        self.frames.push(names);
    }

    /// Closes a function's scope.
    pub fn leave_function(&mut self) {
        self.frames.pop();
    }

    /// Adds a constant.
    pub fn constant(&mut self, tensor: Tensor) -> ValueId {
        self.graph.add_constant(tensor)
    }

    /// Adds constant strings.
    pub fn strings(&mut self, shape: &[usize], elements: &[String]) -> Value {
        let (table, places) = tabulate(elements);
        let places = Tensor::from_vec(shape, places).expect("strings fill their shape");
        Value::Strings(Strings { table, places: self.constant(places) })
    }

    /// Adds a node, or its result where it is known already.
    pub fn add_node(&mut self, op: Op, inputs: &[ValueId], provenance: &Provenance) -> Result<Vec<ValueId>, Fault> {
        let tensors: Option<Vec<Tensor>> = inputs.iter().map(|&input| self.graph.constant(input).cloned()).collect();
        let input_types: Vec<&Type> = inputs.iter().map(|&input| self.graph.ty(input)).collect();
        let types = op.infer(&input_types).map_err(|error| Fault::Invalid(error.to_string()))?;
        if let Some(dim) = types.iter().flat_map(|ty| &ty.dims).find(|dim| dim.weight() > Dim::WEIGHT_MAX) {
            return Err(Fault::Unsupported(format!("a size of {} terms is too large to follow", dim.weight())));
        }
        self.check_sizes(op.name(), &types)?;
        let may_fold = |tensors: &Vec<Tensor>| {
            may_fold(&op, tensors, &types) && multiply_adds(&op, &input_types, &types) <= FOLD_WORK_MAX
        };
        if let Some(tensors) = tensors.filter(may_fold) {
            let results = op.eval(&tensors).map_err(|error| Fault::Invalid(error.to_string()))?;
            return Ok(results.into_iter().map(|tensor| self.constant(tensor)).collect());
        }
        let content = self.content_of_node(&op, inputs, &input_types, &types);
        if let Some(tensor) = content.as_deref().and_then(|dims| constant_of(dims, &types[0])) {
            return Ok(vec![self.constant(tensor)]);
        }
        let outputs = self.graph.add_node(op, inputs, provenance)?;
        if let Some(content) = content {
            self.contents.insert(outputs[0], content);
        }
        Ok(outputs)
    }

    /// A few numbers in a file can ask for any size, so sizes that are known are checked before anything has them.
    fn check_sizes(&self, op: &str, types: &[Type]) -> Result<(), Fault> {
        for ty in types.iter().filter(|ty| ty.shape().is_some()) {
            let value = ty.size_bytes().map_or(u64::MAX, |bytes| bytes as u64);
            if value > self.tensor_bytes_max {
                let (place, limit) = (format!("the result {ty} of {op}"), self.tensor_bytes_max);
                return Err(ReadError::OverLimit { place, budget: Budget::TensorBytes, value, limit }.into());
            }
        }
        Ok(())
    }

    /// The elements of a small integer value as Dims, where they are known.
    pub fn content(&self, value: ValueId) -> Option<Vec<Dim>> {
        if let Some(content) = self.contents.get(&value) {
            return Some(content.clone());
        }
        let tensor = self.graph.constant(value)?;
        if tensor.len() > CONTENT_ELEMENTS_MAX || tensor.dtype().is_float() {
            return None;
        }
        let elements = tensor.to_i128_vec().ok()?;
        elements.into_iter().map(|element| i64::try_from(element).ok().map(Dim::from)).collect()
    }

    /// Says what a value's elements are: used for captured values of bodies.
    pub fn set_content(&mut self, value: ValueId, content: Vec<Dim>) {
        self.contents.insert(value, content);
    }

    /// A symbol that no other part of the Graph uses, with what is known of it.
    pub fn fresh_symbol(&mut self, stem: &str, range: SymbolRange) -> Symbol {
        self.fresh.set(self.fresh.get() + 1);
        let symbol = Symbol::from(format!("{stem}.{}", self.fresh.get()));
        if range != SymbolRange::ANY {
            self.graph.ranges.insert(symbol.clone(), range);
        }
        symbol
    }

    /// Whether a value can become known before the model runs, by freezing inputs or giving dims numbers.
    pub fn can_become_known(&self, value: ValueId) -> bool {
        let (mut seen, mut open, mut has_source) = (BTreeSet::new(), vec![value], false);
        while let Some(value) = open.pop() {
            if !seen.insert(value) {
                continue;
            }
            match &self.graph.value(value).definition {
                Definition::Input(_) if self.run_time.contains(&value) => return false,
                Definition::Input(_) => has_source = true,
                Definition::Constant(_) => {}
                Definition::Node { node, .. } => {
                    let node = self.graph.node(*node);
                    if is_decided_by_a_run(&node.op) {
                        return false;
                    }
                    let mut symbols = BTreeSet::new();
                    node.op.collect_symbols(&mut symbols);
                    if !symbols.is_subset(&self.free) {
                        return false;
                    }
                    has_source |= !symbols.is_empty();
                    open.extend(node.inputs.iter().copied());
                }
            }
        }
        has_source
    }

    /// Whether a symbol gets its number before the model runs.
    pub fn is_free(&self, symbol: &Symbol) -> bool {
        self.free.contains(symbol)
    }

    /// What decides these symbols when it runs, as far as it is known once the inputs behind it are frozen: the operands of
    /// the nodes that make values of these sizes.
    pub fn deciders(&self, symbols: &BTreeSet<Symbol>) -> Vec<ValueId> {
        let makes = |node: &&Node, symbol: &Symbol| {
            node.outputs
                .iter()
                .any(|&output| self.graph.ty(output).dims.iter().any(|dim| dim.symbols().contains(symbol)))
        };
        // Nodes are in order, so the first that has a symbol made it.
        let makers = symbols.iter().filter(|symbol| !self.is_free(symbol));
        let makers = makers.filter_map(|symbol| self.graph.nodes().iter().find(|node| makes(node, symbol)));
        let operands: Vec<ValueId> = makers.flat_map(|node| node.inputs.iter().copied()).collect();
        if operands.iter().all(|&operand| self.can_be_frozen(operand)) { operands } else { Vec::new() }
    }

    /// Whether a value is known once every input that it is computed from is frozen.
    fn can_be_frozen(&self, value: ValueId) -> bool {
        let (mut seen, mut open) = (BTreeSet::new(), vec![value]);
        while let Some(value) = open.pop() {
            if !seen.insert(value) {
                continue;
            }
            match &self.graph.value(value).definition {
                Definition::Input(_) if self.run_time.contains(&value) => return false,
                Definition::Input(_) | Definition::Constant(_) => {}
                Definition::Node { node, .. } => {
                    let node = self.graph.node(*node);
                    if matches!(node.op, Op::Uniform(_) | Op::Normal(_)) {
                        return false;
                    }
                    open.extend(node.inputs.iter().copied());
                }
            }
        }
        true
    }

    /// A symbol of the model's inputs that a value is computed from.
    pub fn free_symbol_behind(&self, values: &[ValueId]) -> Option<Symbol> {
        let (mut seen, mut open, mut symbols) = (BTreeSet::new(), values.to_vec(), BTreeSet::new());
        while let Some(value) = open.pop() {
            if let Some((node, _)) = self.graph.producer(value)
                && seen.insert(value)
            {
                node.op.collect_symbols(&mut symbols);
                open.extend(node.inputs.iter().copied());
            }
        }
        symbols.into_iter().find(|symbol| self.free.contains(symbol))
    }

    fn content_of_node(&self, op: &Op, inputs: &[ValueId], input_types: &[&Type], types: &[Type]) -> Option<Vec<Dim>> {
        let [output] = types else { return None };
        let elements = output.element_count().as_const()?;
        if output.dtype.is_float() || elements > CONTENT_ELEMENTS_MAX as i64 {
            return None;
        }
        let contents: Vec<Option<Vec<Dim>>> = inputs.iter().map(|&input| self.content(input)).collect();
        symbolic::content(op, &contents, input_types, output)
    }

    fn frame(&self) -> &Names {
        self.frames.last().expect("the outermost scope is never left")
    }

    fn frame_mut(&mut self) -> &mut Names {
        self.frames.last_mut().expect("the outermost scope is never left")
    }
}

/// Ops whose results even constant inputs leave open while importing.
fn is_decided_by_a_run(op: &Op) -> bool {
    matches!(op, Op::Uniform(_) | Op::Normal(_) | Op::If(_) | Op::Loop(_) | Op::NonZero(_) | Op::Nms(_))
}

/// Whether a node of constants is small enough to be evaluated here and now.
fn may_fold(op: &Op, inputs: &[Tensor], types: &[Type]) -> bool {
    let mut symbols = BTreeSet::new();
    op.collect_symbols(&mut symbols);
    let input_bytes: usize = inputs.iter().map(|tensor| tensor.as_bytes().len()).sum();
    // Their Types do not say how large the results are, but their inputs do.
    match (op, inputs) {
        (Op::NonZero(_), [x]) => return x.len().saturating_mul(x.rank() * size_of::<i64>()) <= FOLD_BYTES_MAX,
        // Three integers for each score of a class and a box.
        (Op::Nms(nms), [_, scores]) => {
            let is_known = nms.boxes_max.as_const().is_some();
            return is_known && scores.len().saturating_mul(3 * size_of::<i64>()) <= FOLD_BYTES_MAX;
        }
        _ => {}
    }
    // A reshape shares the bytes of its operand.
    if matches!(op, Op::Reshape(_)) && symbols.is_empty() {
        return true;
    }
    !is_decided_by_a_run(op)
        && symbols.is_empty()
        && types.iter().all(|ty| ty.size_bytes().is_some_and(|bytes| bytes <= FOLD_BYTES_MAX))
        && input_bytes <= FOLD_INPUT_BYTES_MAX
}

/// The tensor of elements that are all numbers.
fn constant_of(dims: &[Dim], ty: &Type) -> Option<Tensor> {
    let elements: Vec<i128> = dims.iter().map(|dim| dim.as_const().map(i128::from)).collect::<Option<_>>()?;
    Tensor::from_i128(ty.dtype, ty.shape()?, &elements).ok()
}
