//! Bodies that run by a condition or several times, and lists of values.

use precast::{DType, Tensor};
use precast_onnx::proto::{AttributeProto, GraphProto, NodeProto};

use super::{Made, Maker, on};
use crate::fuzz::growing::{ANY, BOOL, Call, FLOATS, Growing, Known, Rounding, Wanted};
use crate::fuzz::messages::{body, declared, declared_as, int, number_of};

pub const MAKERS: &[Maker] = &[
    on("ConcatFromSequence", 11, joined_list),
    on("If", 16, branch),
    on("Loop", 16, repeat),
    on("Optional", 15, optional),
    on("OptionalGetElement", 18, optional),
    on("OptionalHasElement", 18, optional_question),
    on("Scan", 16, scan),
    on("SequenceAt", 11, list),
    on("SequenceConstruct", 11, list),
    on("SequenceEmpty", 11, empty_list),
    on("SequenceErase", 11, list),
    on("SequenceInsert", 11, empty_list),
    on("SequenceLength", 11, list_length),
    on("SequenceMap", 17, mapped_list),
    on("SplitToSequence", 11, joined_list),
];

pub(super) fn node(operator: &str, input: &[&str], output: &[&str], attribute: Vec<AttributeProto>) -> NodeProto {
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_string()).collect();
    NodeProto {
        op_type: operator.to_string(),
        input: owned(input),
        output: owned(output),
        attribute,
        ..NodeProto::default()
    }
}

fn branch(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let y = growing.broadcast_operand(x.dtype(), x.shape(), false);
    let condition = growing.pick(&Wanted::of(BOOL).ranks(0..=0));
    let mut branch = |operator: &str| {
        let name = growing.fresh();
        let node = node(operator, &[&x.name, &y.name], &[&name], vec![]);
        let output = vec![declared(&name, x.dtype(), None)];
        GraphProto { name: "branch".to_string(), node: vec![node], output, ..GraphProto::default() }
    };
    let attributes = vec![body("then_branch", branch("Add")), body("else_branch", branch("Mul"))];
    growing.add(Call::of(operator, &[&condition]).with(attributes)).map(drop)
}

/// Adds a captured value to a carried one, and halves it; every round is also a row of another output.
fn repeat(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(0..=3));
    let captured = growing.broadcast_operand(x.dtype(), x.shape(), false);
    let half = growing.scalar(x.dtype(), 0.5);
    let rounds = growing.random.below(4);
    let count = growing.constant_of(Tensor::scalar(rounds as i64));
    let names = [0; 6].map(|_| growing.fresh());
    let [round, go, carried, sum, next, go_on] = &names;
    let nodes = vec![
        node("Add", &[carried, &captured.name], &[sum], vec![]),
        node("Mul", &[sum, &half.name], &[next], vec![]),
        node("Identity", &[go], &[go_on], vec![]),
    ];
    let row = growing.fresh();
    let mut nodes = nodes;
    nodes.push(node("Neg", &[next], &[&row], vec![]));
    let graph = GraphProto {
        name: "round".to_string(),
        node: nodes,
        input: vec![
            declared_as(round, &Tensor::scalar(0i64)),
            declared(go, DType::Bool, Some(vec![])),
            declared_as(carried, &x.tensor),
        ],
        output: vec![
            declared(go_on, DType::Bool, Some(vec![])),
            declared_as(next, &x.tensor),
            declared_as(&row, &x.tensor),
        ],
        ..GraphProto::default()
    };
    let absent = Known::absent();
    let call = Call::of(operator, &[&count, &absent, &x]).with(vec![body("body", graph)]).outputs(2);
    growing.add_all(call).map(drop)
}

/// A running sum over the first axis.
fn scan(growing: &mut Growing, operator: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32, DType::F64]).ranks(2..=3).filled());
    let row = x.shape()[1..].to_vec();
    let initial = growing.operand(x.dtype(), &row);
    let names = [0; 4].map(|_| growing.fresh());
    let [state, slice, next, out] = &names;
    let nodes = vec![node("Add", &[state, slice], &[next], vec![]), node("Identity", &[next], &[out], vec![])];
    let graph = GraphProto {
        name: "step".to_string(),
        node: nodes,
        input: vec![declared_as(state, &initial.tensor), declared_as(slice, &initial.tensor)],
        output: vec![declared_as(next, &initial.tensor), declared_as(out, &initial.tensor)],
        ..GraphProto::default()
    };
    let attributes = vec![body("body", graph), int("num_scan_inputs", 1)];
    growing.add_all(Call::of(operator, &[&initial, &x]).with(attributes).outputs(2)).map(drop)
}

/// Two values in a list, of which one is taken out and the other one read.
fn list(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let y = growing.operand(x.dtype(), x.shape());
    let [first, second] = [0.0, 1.0].map(|place| growing.scalar(DType::I64, place));
    let (place, kept) = if growing.random.once_in(2) { (&first, &first) } else { (&second, &first) };
    let names = [0; 3].map(|_| growing.fresh());
    let [whole, rest, value] = &names;
    let nodes = vec![
        node("SequenceConstruct", &[&x.name, &y.name], &[whole], vec![]),
        node("SequenceErase", &[whole, &place.name], &[rest], vec![]),
        node("SequenceAt", &[rest, &kept.name], &[value], vec![]),
    ];
    growing.add_nodes(nodes, std::slice::from_ref(value), Rounding::None).map(drop)
}

fn empty_list(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let first = growing.scalar(DType::I64, 0.0);
    let names = [0; 3].map(|_| growing.fresh());
    let [empty, one, value] = &names;
    let nodes = vec![
        node("SequenceEmpty", &[], &[empty], vec![int("dtype", number_of(x.dtype()))]),
        node("SequenceInsert", &[empty, &x.name], &[one], vec![]),
        node("SequenceAt", &[one, &first.name], &[value], vec![]),
    ];
    growing.add_nodes(nodes, std::slice::from_ref(value), Rounding::None).map(drop)
}

fn list_length(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(ANY));
    let [whole, length] = [0; 2].map(|_| growing.fresh());
    let nodes = vec![
        node("SequenceConstruct", &[&x.name, &x.name], &[&whole], vec![]),
        node("SequenceLength", &[&whole], &[&length], vec![]),
    ];
    growing.add_nodes(nodes, &[length], Rounding::None).map(drop)
}

fn joined_list(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS).ranks(1..=3).filled());
    let axis = growing.random.below(x.rank());
    let length = 1 + growing.random.below(x.shape()[axis]);
    let length = growing.scalar(DType::I64, length as f64);
    let [parts, joined] = [0; 2].map(|_| growing.fresh());
    let nodes = vec![
        node("SplitToSequence", &[&x.name, &length.name], &[&parts], vec![int("axis", axis)]),
        node("ConcatFromSequence", &[&parts], &[&joined], vec![int("axis", axis)]),
    ];
    growing.add_nodes(nodes, &[joined], Rounding::None).map(drop)
}

fn mapped_list(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(&[DType::F32]).ranks(1..=3).filled());
    let y = growing.operand(x.dtype(), x.shape());
    let names = [0; 5].map(|_| growing.fresh());
    let [whole, element, made, mapped, joined] = &names;
    let graph = GraphProto {
        name: "element".to_string(),
        node: vec![node("Neg", &[element], &[made], vec![])],
        input: vec![declared(element, x.dtype(), None)],
        output: vec![declared(made, x.dtype(), None)],
        ..GraphProto::default()
    };
    let nodes = vec![
        node("SequenceConstruct", &[&x.name, &y.name], &[whole], vec![]),
        node("SequenceMap", &[whole], &[mapped], vec![body("body", graph)]),
        node("ConcatFromSequence", &[mapped], &[joined], vec![int("axis", 0)]),
    ];
    growing.add_nodes(nodes, std::slice::from_ref(joined), Rounding::None).map(drop)
}

fn optional(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let [held, value] = [0; 2].map(|_| growing.fresh());
    let nodes =
        vec![node("Optional", &[&x.name], &[&held], vec![]), node("OptionalGetElement", &[&held], &[&value], vec![])];
    growing.add_nodes(nodes, &[value], Rounding::None).map(drop)
}

fn optional_question(growing: &mut Growing, _: &str) -> Made {
    let x = growing.pick(&Wanted::of(FLOATS));
    let [held, value] = [0; 2].map(|_| growing.fresh());
    let nodes =
        vec![node("Optional", &[&x.name], &[&held], vec![]), node("OptionalHasElement", &[&held], &[&value], vec![])];
    growing.add_nodes(nodes, &[value], Rounding::None).map(drop)
}
