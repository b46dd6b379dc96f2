//! Ops that run graphs. Bodies are closed: everything they read is an input. Before a body runs it takes on the Types of
//! the values it is given, since a loop may carry values whose shapes change.

use std::borrow::Cow;
use std::collections::BTreeMap;

use precast_tensor::{Bindings, DType, Dim, Tensor, Type};

use super::raw::from_bytes;
use super::shape::{read_ints, same_dim, write_ints};
use crate::error::{EvalError, InferError};
use crate::eval::eval_graph;
use crate::graph::Graph;
use crate::op::{Fused, If, Loop, Operation};

const IF: &str = "if";
const LOOP: &str = "loop";
const FUSED: &str = "fused";

impl Operation for If {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let [condition, captures @ ..] = inputs else {
            return Err(InferError::new(IF, "the condition is missing"));
        };
        check_single(IF, "condition", condition, DType::Bool)?;
        let then_types = output_types(&*typed_body(IF, &self.then_body, captures)?);
        let else_types = output_types(&*typed_body(IF, &self.else_body, captures)?);
        if then_types != else_types {
            let print = |types: &[Type]| types.iter().map(Type::to_string).collect::<Vec<_>>().join(", ");
            let reason = format!("branches differ: {} and {}", print(&then_types), print(&else_types));
            return Err(InferError::new(IF, reason));
        }
        Ok(then_types)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let [condition, captures @ ..] = inputs else {
            return Err(InferError::new(IF, "the condition is missing").into());
        };
        let body = if read_bool(IF, condition)? { &self.then_body } else { &self.else_body };
        eval_body(IF, body, captures)
    }
}

impl Operation for Loop {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let [trip_count, condition, values @ ..] = inputs else {
            return Err(InferError::new(LOOP, "trip count or condition is missing"));
        };
        check_single(LOOP, "trip count", trip_count, DType::I64)?;
        check_single(LOOP, "condition", condition, DType::Bool)?;
        self.check_body(values)?;
        let declared: Vec<&Type> = self.body.inputs().iter().map(|&input| self.body.ty(input)).collect();
        let given = output_types(&self.body);
        // A carried dim that the body changes is a size of its own after the loop.
        let mut types = Vec::new();
        for at in 0..self.carried {
            let (before, after) = (declared[2 + at], &given[1 + at]);
            let dims = before.dims.iter().zip(&after.dims).zip(&values[at].dims).enumerate();
            let dims =
                dims.map(
                    |(axis, ((before, after), outer))| {
                        if before == after { outer.clone() } else { self.symbol(&format!("carried{at}_{axis}")) }
                    },
                );
            types.push(Type { dtype: after.dtype, dims: dims.collect() });
        }
        let carried: Vec<&Type> = (0..self.carried)
            .map(|at| if types[at].dims == values[at].dims { values[at] } else { declared[2 + at] })
            .collect();
        let body_inputs = [&declared[..2], &carried, &values[self.carried..]].concat();
        let body = typed_body(LOOP, &self.body, &body_inputs)?;
        for slice in output_types(&body).into_iter().skip(1 + self.carried) {
            let dims = std::iter::once(self.symbol("trip")).chain(slice.dims).collect();
            types.push(Type { dtype: slice.dtype, dims });
        }
        Ok(types)
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        let types: Vec<Type> = inputs.iter().map(Tensor::type_).collect();
        let inferred = self.infer(&types.iter().collect::<Vec<_>>())?;
        let trip_count = read_single(LOOP, &inputs[0])?;
        let mut is_running = read_bool(LOOP, &inputs[1])?;
        let (mut carried, captures) = (inputs[2..2 + self.carried].to_vec(), &inputs[2 + self.carried..]);
        let mut scans: Vec<Vec<Tensor>> = vec![Vec::new(); inferred.len() - self.carried];
        let mut iteration: i128 = 0;
        while is_running && iteration < trip_count {
            let mut arguments = vec![
                write_ints(LOOP, DType::I64, &vec![1; self.body_input_rank(0)], &[iteration])?,
                write_ints(LOOP, DType::Bool, &vec![1; self.body_input_rank(1)], &[1])?,
            ];
            arguments.extend(carried);
            arguments.extend_from_slice(captures);
            let mut outputs = eval_body(LOOP, &self.body, &arguments)?.into_iter();
            let condition = outputs.next().ok_or_else(|| EvalError::value(LOOP, "the body gives no condition"))?;
            is_running = read_bool(LOOP, &condition)?;
            carried = outputs.by_ref().take(self.carried).collect();
            scans.iter_mut().zip(outputs).for_each(|(scan, slice)| scan.push(slice));
            iteration += 1;
        }
        for (scan, ty) in scans.iter().zip(&inferred[self.carried..]) {
            carried.push(stack(scan, ty)?);
        }
        Ok(carried)
    }
}

impl Loop {
    fn check_body(&self, values: &[&Type]) -> Result<(), InferError> {
        let (inputs, outputs) = (self.body.inputs(), self.body.outputs());
        if values.len() < self.carried || inputs.len() != 2 + values.len() || outputs.len() < 1 + self.carried {
            let reason = format!(
                "the body has {} inputs and {} outputs, which does not fit {} carried of {} values",
                inputs.len(),
                outputs.len(),
                self.carried,
                values.len()
            );
            return Err(InferError::new(LOOP, reason));
        }
        check_single(LOOP, "iteration number of the body", self.body.ty(inputs[0]), DType::I64)?;
        check_single(LOOP, "condition of the body", self.body.ty(inputs[1]), DType::Bool)?;
        check_single(LOOP, "condition from the body", self.body.ty(outputs[0].value), DType::Bool)?;
        for at in 0..self.carried {
            let (outer, before) = (values[at], self.body.ty(inputs[2 + at]));
            let after = self.body.ty(outputs[1 + at].value);
            let fits = [before, after].iter().all(|ty| ty.dtype == outer.dtype && ty.dims.len() == outer.dims.len());
            if !fits {
                let reason =
                    format!("carried value {at} is {outer} outside, {before} before and {after} after the body");
                return Err(InferError::new(LOOP, reason));
            }
        }
        Ok(())
    }

    fn body_input_rank(&self, input: usize) -> usize {
        self.body.inputs().get(input).map_or(0, |&input| self.body.ty(input).dims.len())
    }

    /// A size that only a run decides. It is named after the body, so loops whose bodies differ in name differ in size.
    fn symbol(&self, what: &str) -> Dim {
        let name = if self.body.name.is_empty() { LOOP } else { &self.body.name };
        Dim::symbol(format!("{name}_{what}"))
    }
}

impl Operation for Fused {
    fn infer(&self, inputs: &[&Type]) -> Result<Vec<Type>, InferError> {
        let declared: Vec<&Type> = self.body.inputs().iter().map(|&input| self.body.ty(input)).collect();
        if declared != inputs {
            let print = |types: &[&Type]| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
            let reason = format!("inputs {} found where the body takes {}", print(inputs), print(&declared));
            return Err(InferError::new(FUSED, reason));
        }
        Ok(output_types(&self.body))
    }

    fn eval(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
        eval_graph(&self.body, inputs)
    }
}

fn output_types(body: &Graph) -> Vec<Type> {
    body.outputs().iter().map(|output| body.ty(output.value).clone()).collect()
}

/// A body with the Types of the values it is given: itself where those are the ones it declares.
fn typed_body<'a>(op: &'static str, body: &'a Graph, inputs: &[&Type]) -> Result<Cow<'a, Graph>, InferError> {
    let declared: Vec<&Type> = body.inputs().iter().map(|&input| body.ty(input)).collect();
    if declared == inputs {
        return Ok(Cow::Borrowed(body));
    }
    let ranks_fit = declared.len() == inputs.len()
        && declared.iter().zip(inputs).all(|(a, b)| a.dtype == b.dtype && a.dims.len() == b.dims.len());
    if !ranks_fit {
        let print = |types: &[&Type]| types.iter().map(|ty| ty.to_string()).collect::<Vec<_>>().join(", ");
        let reason = format!("inputs {} found where the body takes {}", print(inputs), print(&declared));
        return Err(InferError::new(op, reason));
    }
    let mut bindings = Bindings::new();
    let mut types = BTreeMap::new();
    for (position, (declared, input)) in declared.iter().zip(inputs).enumerate() {
        for (dim, size) in declared.dims.iter().zip(&input.dims) {
            if let (Some(symbol), Some(size)) = (dim.as_symbol(), size.as_const())
                && bindings.insert(symbol, size).is_some_and(|before| before != size)
            {
                return Err(InferError::new(op, format!("{symbol} of the body would have two sizes")));
            }
        }
        types.insert(position, (*input).clone());
    }
    let body = body.bind(&bindings, &types).map_err(|error| InferError::new(op, format!("body: {error}")))?;
    Ok(Cow::Owned(body))
}

fn eval_body(op: &'static str, body: &Graph, inputs: &[Tensor]) -> Result<Vec<Tensor>, EvalError> {
    let types: Vec<Type> = inputs.iter().map(Tensor::type_).collect();
    let body = typed_body(op, body, &types.iter().collect::<Vec<_>>())?;
    eval_graph(&body, inputs)
}

fn check_single(op: &'static str, what: &str, ty: &Type, dtype: DType) -> Result<(), InferError> {
    let is_single = ty.dims.len() <= 1 && ty.dims.iter().all(|dim| same_dim(dim, &Dim::ONE).is_some());
    if is_single && ty.dtype == dtype {
        return Ok(());
    }
    Err(InferError::new(op, format!("{what} is {ty} where one {} is expected", dtype.name())))
}

fn read_single(op: &'static str, tensor: &Tensor) -> Result<i128, EvalError> {
    match read_ints(op, tensor)?.as_slice() {
        [value] => Ok(*value),
        values => Err(EvalError::value(op, format!("{} elements found where one is expected", values.len()))),
    }
}

fn read_bool(op: &'static str, tensor: &Tensor) -> Result<bool, EvalError> {
    Ok(read_single(op, tensor)? != 0)
}

/// Slices of equal shape one after the other; without slices, an empty tensor with the dims that are known.
fn stack(slices: &[Tensor], ty: &Type) -> Result<Tensor, EvalError> {
    let Some(first) = slices.first() else {
        let dims = ty.dims.iter().skip(1).map(|dim| dim.as_usize().unwrap_or(0));
        return from_bytes(LOOP, ty.dtype, &std::iter::once(0).chain(dims).collect::<Vec<_>>(), Vec::new());
    };
    if let Some(other) = slices.iter().find(|slice| slice.shape() != first.shape()) {
        let reason = format!("slices of a scan output have shapes {:?} and {:?}", first.shape(), other.shape());
        return Err(EvalError::value(LOOP, reason));
    }
    let shape: Vec<usize> = std::iter::once(slices.len()).chain(first.shape().iter().copied()).collect();
    from_bytes(LOOP, first.dtype(), &shape, slices.iter().flat_map(|slice| slice.as_bytes().to_vec()).collect())
}

#[cfg(test)]
#[path = "control_tests.rs"]
mod tests;
