//! Reference evaluation of a whole graph: nodes in order, each by its op's meaning. Symbols become numbers as the run
//! learns them: from input shapes, from values that size reads name, and from the shapes that nodes turn out to have.

use precast_tensor::{Bindings, Tensor, Type};

use crate::error::EvalError;
use crate::graph::{Definition, Graph, NodeId, ValueId};

/// Outputs of a graph for these inputs, in order.
pub fn eval_graph(graph: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    eval_graph_with(graph, inputs, &mut |_, _| {})
}

/// `eval_graph` that shows every node's outputs to `observe` as soon as the node has run.
pub fn eval_graph_with(
    graph: &Graph,
    inputs: &[Tensor],
    observe: &mut dyn FnMut(NodeId, &[Tensor]),
) -> Result<Vec<Tensor>, EvalError> {
    let mut run = Run::start(graph, inputs)?;
    for (position, node) in graph.nodes().iter().enumerate() {
        let outputs = run.node_outputs(position).map_err(|source| EvalError::Node {
            node: node.outputs.first().map_or(0, |output| output.0),
            name: node.provenance.to_string(),
            source: Box::new(source),
        })?;
        observe(NodeId(position as u32), &outputs);
        run.finish_node(position, outputs)?;
    }
    graph.outputs().iter().map(|output| run.value(output.value)).collect()
}

/// Numbers for the symbols that stand alone in the Types of a graph's inputs, and a check of the inputs against those
/// Types: count, element type, rank, and every dim that has a number.
pub fn bind_inputs(graph: &Graph, inputs: &[Tensor]) -> Result<Bindings, EvalError> {
    if inputs.len() != graph.inputs().len() {
        let reason = format!("{} inputs given where {} are expected", inputs.len(), graph.inputs().len());
        return Err(EvalError::Input { name: String::new(), reason });
    }
    let mut bindings = Bindings::new();
    let declared = || graph.inputs().iter().map(|&input| graph.ty(input)).zip(inputs);
    for (ty, tensor) in declared() {
        bind_shape(ty, tensor.shape(), &mut bindings);
    }
    for (&input, (ty, tensor)) in graph.inputs().iter().zip(declared()) {
        let found = tensor.type_();
        let fits_dims = found.dims.len() == ty.dims.len()
            && ty
                .dims
                .iter()
                .zip(&found.dims)
                .all(|(dim, size)| dim.eval(&bindings).is_none_or(|n| size.as_const() == Some(n)));
        if found.dtype != ty.dtype || !fits_dims {
            let reason = format!("{found} found where {ty} is expected{}", describe(&bindings));
            return Err(EvalError::Input { name: graph.input_name(input).to_string(), reason });
        }
    }
    for (symbol, value) in bindings.iter() {
        let range = graph.ranges.get(symbol);
        if value < range.lo || value > range.hi || (range.multiple > 1 && value % range.multiple != 0) {
            let reason =
                format!("{symbol} = {value} lies outside {}..={} (multiple {})", range.lo, range.hi, range.multiple);
            return Err(EvalError::Input { name: symbol.to_string(), reason });
        }
    }
    Ok(bindings)
}

/// Binds the symbols that stand alone in a Type and are not bound yet to the sizes of a shape.
pub fn bind_shape(ty: &Type, shape: &[usize], bindings: &mut Bindings) {
    for (dim, &size) in ty.dims.iter().zip(shape) {
        if let Some(symbol) = dim.as_symbol()
            && bindings.get(symbol).is_none()
        {
            bindings.insert(symbol, size as i64);
        }
    }
}

fn describe(bindings: &Bindings) -> String {
    if bindings.is_empty() { String::new() } else { format!(" with {bindings}") }
}

/// What is known in the middle of a run.
struct Run<'a> {
    graph: &'a Graph,
    bindings: Bindings,
    /// Values that have been computed and are still needed.
    values: Vec<Option<Tensor>>,
    /// Reads of each value that are still to come.
    uses: Vec<u32>,
}

impl<'a> Run<'a> {
    fn start(graph: &'a Graph, inputs: &[Tensor]) -> Result<Run<'a>, EvalError> {
        let ends = graph.outputs().iter().map(|output| output.value).chain(graph.sizes.iter().map(|size| size.value));
        if let Some(value) = ends.into_iter().find(|value| value.0 as usize >= graph.values().len()) {
            return Err(EvalError::value("graph", format!("there is no value {value}")));
        }
        let bindings = bind_inputs(graph, inputs)?;
        let mut run = Run { graph, bindings, values: vec![None; graph.values().len()], uses: graph.use_counts() };
        for (&input, tensor) in graph.inputs().iter().zip(inputs) {
            run.set(input, tensor.clone())?;
        }
        for (at, value) in graph.values().iter().enumerate() {
            if let Definition::Constant(tensor) = &value.definition {
                run.set(ValueId(at as u32), tensor.clone())?;
            }
        }
        Ok(run)
    }

    fn node_outputs(&self, position: usize) -> Result<Vec<Tensor>, EvalError> {
        let node = &self.graph.nodes()[position];
        let op = node.op.bind(&self.bindings);
        let inputs: Vec<Tensor> = node.inputs.iter().map(|&input| self.value(input)).collect::<Result<_, _>>()?;
        let outputs = op.eval(&inputs)?;
        if outputs.len() != node.outputs.len() {
            let reason = format!("{} outputs found where {} are expected", outputs.len(), node.outputs.len());
            return Err(EvalError::value(op.name(), reason));
        }
        Ok(outputs)
    }

    /// Keeps a node's outputs, learns sizes from them, and frees inputs that are not read again.
    fn finish_node(&mut self, position: usize, outputs: Vec<Tensor>) -> Result<(), EvalError> {
        let node = &self.graph.nodes()[position];
        for (&output, tensor) in node.outputs.iter().zip(outputs) {
            bind_shape(self.graph.ty(output), tensor.shape(), &mut self.bindings);
            self.set(output, tensor)?;
        }
        for &input in &node.inputs {
            self.read_once(input);
        }
        Ok(())
    }

    /// Gives a value its tensor and binds the symbols that are read from it.
    fn set(&mut self, value: ValueId, tensor: Tensor) -> Result<(), EvalError> {
        if self.uses[value.0 as usize] > 0 {
            self.values[value.0 as usize] = Some(tensor.clone());
        }
        for size in self.graph.sizes.iter().filter(|size| size.value == value) {
            let number = read_size(&tensor, size.element).ok_or_else(|| {
                EvalError::value("size", format!("{} has no element {value}[{}]", size.symbol, size.element))
            })?;
            match self.bindings.insert(&size.symbol, number) {
                Some(before) if before != number => {
                    let reason = format!("{} is {number} where {before} is expected", size.symbol);
                    return Err(EvalError::value("size", reason));
                }
                _ => self.read_once(value),
            }
        }
        Ok(())
    }

    fn read_once(&mut self, value: ValueId) {
        let at = value.0 as usize;
        self.uses[at] = self.uses[at].saturating_sub(1);
        if self.uses[at] == 0 {
            self.values[at] = None;
        }
    }

    fn value(&self, value: ValueId) -> Result<Tensor, EvalError> {
        self.values[value.0 as usize]
            .clone()
            .ok_or_else(|| EvalError::value("graph", format!("value {value} is read before it is computed")))
    }
}

fn read_size(tensor: &Tensor, element: usize) -> Option<i64> {
    if !tensor.dtype().is_int() {
        return None;
    }
    i64::try_from(*tensor.to_i128_vec().ok()?.get(element)?).ok()
}

#[cfg(test)]
#[path = "eval_tests.rs"]
pub(crate) mod tests;
