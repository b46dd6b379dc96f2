//! Cases as data. A line of a `.cases` file is a graph of one node, its operands given by Type:
//!
//! ```text
//! # a comment
//! defaults softmax {axis=0, log=false}
//! softmax(f32[2,5]) {axis=1}
//! gather(f32[3,4], index(3) i64[5]) {axis=0}
//! matmul(f32[2,3], const f32[3,4]) {transpose_a=false, transpose_b=false}
//! reference pool.lp(..) {..}
//! ```
//!
//! An operand is `[const] [fill] Type [elements]`; the fills are those of `Fill`. `defaults` gives the attributes that
//! later lines leave out. `reference` says that no kernel covers the case. A `.ir` file is one whole graph in the text
//! form; an input whose name begins with `const` becomes a constant, and the rest of the name may be a fill.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use precast_ir::attr::{AttrReader, NoConstants, split_top_level};
use precast_ir::graph::GraphCopy;
use precast_ir::{Graph, Op, text};
use precast_tensor::{Tensor, Type};

use crate::value::{Fill, Random};

/// A graph with values for its inputs.
pub struct Case {
    /// Where it is written.
    pub name: String,
    /// What is computed.
    pub graph: Graph,
    /// On what.
    pub inputs: Vec<Tensor>,
    /// What is known of its steps.
    pub expects: Expects,
}

/// What is known of the steps of a case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Expects {
    /// A kernel for every node.
    Kernels,
    /// No kernel covers it.
    Reference,
    /// After the passes at most this many steps, each a kernel.
    StepsAfterPasses(usize),
}

/// One operand of a one-node case.
pub struct Operand {
    /// Its value.
    pub tensor: Tensor,
    /// Whether the graph holds it as a constant.
    pub is_constant: bool,
}

impl Case {
    /// A graph of one node, or why the op has no meaning for these operands.
    pub fn of_node(name: String, op: Op, operands: Vec<Operand>, expects: Expects) -> Result<Case, String> {
        let mut graph = Graph::new("");
        let mut inputs = Vec::new();
        let mut values = Vec::new();
        for (position, operand) in operands.into_iter().enumerate() {
            if operand.is_constant {
                values.push(graph.add_constant(operand.tensor));
            } else {
                values.push(graph.add_input(format!("x{position}"), operand.tensor.type_()));
                inputs.push(operand.tensor);
            }
        }
        let outputs = graph.add_node(op, &values, &Default::default()).map_err(|error| error.to_string())?;
        for (position, output) in outputs.into_iter().enumerate() {
            graph.add_output(format!("y{position}"), output);
        }
        Ok(Case { name, graph, inputs, expects })
    }
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name)
}

/// The cases of one `.cases` file.
pub fn read_cases(stem: &str) -> Vec<Case> {
    let path = folder("cases").join(format!("{stem}.cases"));
    let content = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut defaults: BTreeMap<String, Vec<(String, String)>> = BTreeMap::new();
    let mut cases = Vec::new();
    for (number, line) in content.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let name = format!("{stem}.cases:{} {line}", number + 1);
        if let Some(rest) = line.strip_prefix("defaults ") {
            let (op, attributes) = rest.split_once(' ').unwrap_or_else(|| panic!("{name}: no attributes"));
            defaults.insert(op.to_string(), attribute_pairs(attributes));
            continue;
        }
        cases.push(read_case(&name, line, &defaults).unwrap_or_else(|reason| panic!("{name}: {reason}")));
    }
    cases
}

fn read_case(name: &str, line: &str, defaults: &BTreeMap<String, Vec<(String, String)>>) -> Result<Case, String> {
    let (line, expects) =
        line.strip_prefix("reference ").map_or((line, Expects::Kernels), |rest| (rest, Expects::Reference));
    let (head, rest) = line.split_once('(').ok_or("there is no '('")?;
    let (op_name, func) = head.split_once('.').map_or((head, None), |(op, func)| (op, Some(func)));
    let end = closing(rest).ok_or("there is no ')'")?;
    let operands = split_top_level(&rest[..end]).into_iter().map(str::trim).filter(|operand| !operand.is_empty());
    let mut random = Random::new(name);
    let operands = operands.map(|operand| read_operand(operand, &mut random)).collect::<Result<Vec<_>, _>>()?;
    let own = attribute_pairs(&rest[end + 1..]);
    let op = read_op(op_name, func, &own, defaults.get(op_name).map_or(&[], Vec::as_slice))?;
    Case::of_node(name.to_string(), op, operands, expects)
}

/// Where the parenthesis that encloses `text` ends.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0;
    text.bytes().position(|byte| {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            _ => {}
        }
        depth < 0
    })
}

/// `{a=1, b=[2, 3]}` as pairs.
fn attribute_pairs(text: &str) -> Vec<(String, String)> {
    let inner = text.trim().trim_start_matches('{').trim_end_matches('}');
    let pairs = split_top_level(inner).into_iter().filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (name.trim().to_string(), value.trim().to_string())).collect()
}

fn read_op(
    name: &str,
    func: Option<&str>,
    own: &[(String, String)],
    defaults: &[(String, String)],
) -> Result<Op, String> {
    let info = Op::TABLE.iter().find(|info| info.name == name).ok_or_else(|| format!("there is no op '{name}'"))?;
    let is_known = |attribute: &str| info.attributes.iter().any(|(known, _)| *known == attribute);
    if let Some((unknown, _)) = own.iter().find(|(attribute, _)| !is_known(attribute)) {
        return Err(format!("there is no attribute '{unknown}'"));
    }
    let mut pairs = Vec::new();
    for (attribute, _) in info.attributes {
        let given = own.iter().chain(defaults).find(|(found, _)| found == attribute).map(|(_, value)| value.as_str());
        let given = if *attribute == "func" { func } else { given };
        let value = given.ok_or_else(|| format!("attribute '{attribute}' is missing"))?;
        pairs.push((attribute.to_string(), value.to_string()));
    }
    Op::parse(name, &mut AttrReader::new(name, &pairs, &NoConstants)).map_err(|error| error.to_string())
}

fn read_operand(text: &str, random: &mut Random) -> Result<Operand, String> {
    let (text, is_constant) = text.strip_prefix("const ").map_or((text, false), |rest| (rest, true));
    if text.ends_with(']') && text.contains("] [") {
        return Ok(Operand { tensor: read_tensor(text)?, is_constant });
    }
    let (fill, ty) = text.rsplit_once(' ').unwrap_or(("", text));
    let fill = Fill::read(fill).ok_or_else(|| format!("there is no fill '{fill}'"))?;
    let ty: Type = ty.parse().map_err(|error| format!("{ty}: {error}"))?;
    Ok(Operand { tensor: random.tensor(&ty, fill), is_constant })
}

/// A tensor as the text form writes a constant.
fn read_tensor(text: &str) -> Result<Tensor, String> {
    let graph = format!("graph \"\"() {{\n  %0 = constant {text}\n  return \"y\" %0\n}}\n");
    let graph = text::parse(&graph, &NoConstants).map_err(|error| error.to_string())?;
    Ok(graph.constant(graph.outputs()[0].value).expect("the graph is one constant").clone())
}

/// The graphs of the folder `graphs`.
pub fn read_graphs() -> Vec<Case> {
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder("graphs")).expect("the folder of graphs").map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| read_graph(path)).collect()
}

fn read_graph(path: &Path) -> Case {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let content = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"));
    let whole = text::parse(&content, &NoConstants).unwrap_or_else(|error| panic!("{name}: {error}"));
    let mut random = Random::new(&name);
    let mut copy = GraphCopy::new(&whole);
    let mut inputs = Vec::new();
    for &input in whole.inputs() {
        let (words, ty) = (whole.input_name(input), whole.ty(input));
        let fill = words.split(' ').next_back().and_then(Fill::read).unwrap_or(Fill::Plain);
        let tensor = random.tensor(ty, fill);
        if words.starts_with("const") {
            let constant = copy.new.add_constant(tensor);
            copy.set(input, constant);
        } else {
            copy.input(input, ty.clone());
            inputs.push(tensor);
        }
    }
    for node in whole.nodes() {
        copy.node(node).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    Case {
        name,
        graph: copy.finish(),
        inputs,
        expects: Expects::StepsAfterPasses(whole.nodes().len() + whole.outputs().len()),
    }
}
