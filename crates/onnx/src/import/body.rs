//! Bodies of `If` and `Loop`: graphs of their own that see the names around them. What a body uses of its surroundings
//! becomes an explicit input of the body (a capture), except constants, which it simply shares.

use std::collections::BTreeSet;

use precast_ir::{Graph, ValueId};
use precast_tensor::Type;

use crate::proto::GraphProto;

use super::error::inputs_behind;
use super::live::remove_dead;
use super::value::Value;
use super::{Builder, DEPTH_MAX, Fault, ImportError, Importer, Opsets};

/// Names that a body takes from around it, in a fixed order.
pub(crate) fn free_names(graph: &GraphProto) -> BTreeSet<String> {
    let mut free = BTreeSet::new();
    collect_free(graph, &mut free, 0);
    free
}

fn collect_free(graph: &GraphProto, free: &mut BTreeSet<String>, depth: usize) {
    if depth > DEPTH_MAX {
        return;
    }
    let mut defined: BTreeSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    defined.extend(graph.initializer.iter().map(|initializer| initializer.name.as_str()));
    for node in &graph.node {
        let mut used: BTreeSet<String> = node.input.iter().filter(|name| !name.is_empty()).cloned().collect();
        for attribute in &node.attribute {
            if let Some(body) = &attribute.g {
                collect_free(body, &mut used, depth + 1);
            }
        }
        free.extend(used.into_iter().filter(|name| !defined.contains(name.as_str())));
        defined.extend(node.output.iter().map(String::as_str));
    }
    free.extend(
        graph.output.iter().filter(|output| !defined.contains(output.name.as_str())).map(|output| output.name.clone()),
    );
}

impl Importer<'_> {
    /// Imports a body. Its inputs are `parameters` (one Type for each of the proto's own inputs) and then `captures`.
    pub(crate) fn import_body(
        &mut self,
        outer: &Builder,
        proto: &GraphProto,
        parameters: &[Type],
        captures: &[String],
        opsets: &Opsets,
        depth: usize,
    ) -> Result<Graph, Fault> {
        check_body(proto, parameters.len(), depth)?;
        let mut builder = Builder::inside(&proto.name, outer);
        for (input, ty) in proto.input.iter().zip(parameters) {
            let value = builder.add_body_input(&input.name, ty.clone(), true);
            builder.define(&input.name, value);
        }
        let mut captured: Vec<(ValueId, ValueId)> = Vec::new();
        for name in captures {
            let Some(value) = outer.lookup(name) else { continue };
            let inner = match outer.graph.constant(value) {
                Some(tensor) => builder.constant(tensor.clone()),
                None => {
                    let is_run_time = !outer.can_become_known(value);
                    let inner = builder.add_body_input(name, outer.graph.ty(value).clone(), is_run_time);
                    if let Some(content) = outer.content(value) {
                        builder.set_content(inner, content);
                    }
                    captured.push((inner, value));
                    inner
                }
            };
            builder.define(name, inner);
        }
        for initializer in &proto.initializer {
            let value = self.initializer(&mut builder, initializer)?;
            builder.define(&initializer.name, value);
        }
        let unsupported = self.unsupported.len();
        match self.import_nodes(&mut builder, &proto.node, opsets, depth + 1) {
            Ok(()) => {}
            Err(ImportError::NeedsInputs { inputs, what }) => {
                // The body's inputs are values of the graph around it, or made by the loop itself.
                let values: Option<Vec<ValueId>> = inputs
                    .iter()
                    .map(|input| {
                        let found = captured.iter().find(|(inner, _)| builder.graph.input_name(*inner) == input);
                        found.map(|&(_, value)| value)
                    })
                    .collect();
                return match values.filter(|values| !inputs_behind(&outer.graph, values).is_empty()) {
                    Some(values) => Err(Fault::NeedsValue { values, what }),
                    None => Err(Fault::Unsupported(format!("{what} is only known while the model runs"))),
                };
            }
            Err(error) => return Err(Fault::Nested(Box::new(error))),
        }
        if self.unsupported.len() > unsupported {
            return Err(Fault::Listed);
        }
        for output in &proto.output {
            let value = builder
                .lookup(&output.name)
                .ok_or_else(|| Fault::Invalid(format!("the body does not define its output '{}'", output.name)))?;
            builder.graph.add_output(output.name.clone(), value);
        }
        Ok(remove_dead(builder.graph)?)
    }

    /// Imports a body's nodes straight into the graph around it, for a branch that is known to be taken or a loop that is
    /// unrolled. `parameters` are the values of the proto's own inputs.
    pub(crate) fn inline_body(
        &mut self,
        builder: &mut Builder,
        proto: &GraphProto,
        parameters: &[Value],
        opsets: &Opsets,
        depth: usize,
    ) -> Result<Vec<Value>, Fault> {
        check_body(proto, parameters.len(), depth)?;
        let mut inner: Vec<(String, Option<Value>)> = free_names(proto)
            .into_iter()
            .filter_map(|name| {
                let value = builder.value(&name).cloned();
                (value.is_some() || builder.is_absent(&name)).then_some((name, value))
            })
            .collect();
        inner
            .extend(proto.input.iter().zip(parameters).map(|(input, value)| (input.name.clone(), Some(value.clone()))));
        for initializer in &proto.initializer {
            inner.push((initializer.name.clone(), Some(self.initializer(builder, initializer)?)));
        }
        let outputs: Vec<&str> = proto.output.iter().map(|output| output.name.as_str()).collect();
        self.import_scope(builder, inner, &proto.node, &outputs, opsets, depth)
    }
}

/// A body has as many inputs as it is given, and does not lie too deep.
fn check_body(proto: &GraphProto, parameters: usize, depth: usize) -> Result<(), Fault> {
    if depth >= DEPTH_MAX {
        return Err(Fault::Invalid(format!("bodies are nested more than {DEPTH_MAX} deep")));
    }
    if parameters != proto.input.len() {
        let inputs = proto.input.len();
        return Err(Fault::Invalid(format!("the body has {inputs} inputs; {parameters} were expected")));
    }
    Ok(())
}
