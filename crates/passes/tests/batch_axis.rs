//! The padding proof against a hand-made table of verdicts, and against what padding and splitting really do: every
//! accepted Graph, of the table and random ones, is run with pads of many contents; refused ones must show why.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "only the generator of random tensors is used here")]
mod meaning;
mod padding;

use meaning::Random;
use padding::random_graph::random_graph;
use padding::{Content, SIZES, guessed_rows, padded_inputs, real_inputs, real_rows, run_in_chunks, same_bits};
use precast_ir::attr::NoConstants;
use precast_ir::eval::eval_graph;
use precast_ir::{Graph, Op, text};
use precast_passes::{Grade, OutputRule, PadVerdict, explain, pad_verdict};
use precast_tensor::{Symbol, Tensor};

/// Random Graphs that must be accepted and run.
const RANDOM_ACCEPTED: usize = 800;
/// Seeds to find them in.
const RANDOM_SEEDS: u64 = 20_000;

/// One line `case name: verdict` and a Graph with the Dim `n`.
struct Case {
    name: &'static str,
    expected: &'static str,
    graph: Graph,
}

fn cases() -> Vec<Case> {
    let content = include_str!("verdicts.txt");
    let blocks = content.split("\ncase ").skip(1);
    let case = |block: &'static str| {
        let (head, body) = block.split_once('\n').unwrap();
        let (name, expected) = head.split_once(": ").unwrap_or_else(|| panic!("{head}: no verdict"));
        let graph = text::parse(body, &NoConstants).unwrap_or_else(|error| panic!("{name}: {error}"));
        Case { name, expected, graph }
    };
    blocks.map(case).collect()
}

fn dim() -> Symbol {
    Symbol::new("n")
}

/// The verdict as the table writes it.
fn print(verdict: &PadVerdict) -> String {
    let rule = |rule: &OutputRule| match rule {
        OutputRule::Whole => "whole".to_string(),
        OutputRule::Rows { axis, outer: 1, inner: 1 } => format!("rows {axis}"),
        OutputRule::Rows { axis, outer, inner } => format!("rows {axis} {outer}*n*{inner}"),
        OutputRule::Mixed => "mixed".to_string(),
    };
    let rules: Vec<String> = verdict.outputs.iter().map(rule).collect();
    let grade = match &verdict.grade {
        Grade::Independent if verdict.split_safe => "Independent, split".to_string(),
        Grade::Independent => "Independent".to_string(),
        Grade::ReplicateOnly => "ReplicateOnly".to_string(),
        Grade::Refused { op, axis: Some(axis), .. } => return format!("Refused by {op} on axis {axis}"),
        Grade::Refused { op, axis: None, .. } => return format!("Refused by {op}"),
    };
    format!("{grade}; {}", rules.join(", "))
}

#[test]
fn every_class_of_op_has_its_verdict() {
    let cases = cases();
    assert!(cases.len() >= 100, "{}", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| {
            let verdict = pad_verdict(&case.graph, &dim());
            let found = print(&verdict);
            let line = explain(&case.graph, &verdict);
            (found != case.expected).then(|| format!("{}: {found}, not {}\n  {line}", case.name, case.expected))
        })
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_table_has_every_op_both_ways_where_both_exist() {
    let cases = cases();
    let all: Vec<(bool, &str)> = cases
        .iter()
        .flat_map(|case| case.graph.nodes().iter().map(|node| (case.expected.starts_with("Refused"), node.op.name())))
        .collect();
    let missing: Vec<&str> =
        Op::TABLE.iter().map(|row| row.name).filter(|name| !all.iter().any(|(_, op)| op == name)).collect();
    assert!(missing.is_empty(), "no case has {missing:?}");
    // Elementwise and transposing ops keep every row that reaches them, random ones none.
    let never_refused = ["unary", "clamp", "cast", "bitcast", "transpose"];
    let never_accepted = ["uniform", "normal"];
    for row in Op::TABLE {
        let is = |refused: bool| all.contains(&(refused, row.name));
        assert!(is(false) || never_accepted.contains(&row.name), "no accepted case has {}", row.name);
        assert!(is(true) || never_refused.contains(&row.name), "no refused case has {}", row.name);
    }
}

/// Runs an accepted Graph with pads and in chunks. Gives the number of padded runs; contents other than copies may make
/// an index leave its range, which ends the run but is not a wrong result.
fn check_by_running(graph: &Graph, verdict: &PadVerdict, seed: u64, name: &str) -> usize {
    let contents = match verdict.grade {
        Grade::Independent => Content::ALL,
        Grade::ReplicateOnly => Content::COPIES,
        Grade::Refused { .. } => return 0,
    };
    let mut random = Random(seed);
    let mut runs = 0;
    for sizes in SIZES {
        let inputs = real_inputs(graph, &dim(), sizes.0, &mut random);
        let Ok(exact) = eval_graph(graph, &inputs) else { continue };
        for &content in contents {
            let padded = padded_inputs(graph, &dim(), &inputs, sizes, content, &mut random);
            let context = || format!("{name}: {content:?} {sizes:?}\n{}\n{graph}", explain(graph, verdict));
            match eval_graph(graph, &padded) {
                Ok(outputs) => {
                    let real = real_rows(&outputs, &verdict.outputs, sizes);
                    assert!(same_bits(&real, &exact), "{}\n{real:?}\n{exact:?}", context());
                    runs += 1;
                }
                Err(error) => assert!(!Content::COPIES.contains(&content), "{}\n{error}", context()),
            }
        }
        if verdict.split_safe && sizes.0 > 1 {
            let joined = run_in_chunks(graph, &dim(), &inputs, &verdict.outputs, sizes.0, 1).unwrap();
            assert!(same_bits(&joined, &exact), "{name}: chunks\n{graph}");
        }
    }
    runs
}

#[test]
fn accepted_cases_keep_their_bits_for_any_pads() {
    for case in cases().iter().filter(|case| !case.expected.starts_with("Refused")) {
        let verdict = pad_verdict(&case.graph, &dim());
        let runs = check_by_running(&case.graph, &verdict, 11, case.name);
        assert!(runs > 0, "{} never ran", case.name);
    }
}

#[test]
fn accepted_random_graphs_keep_their_bits_for_any_pads() {
    let (mut accepted, mut replicated, mut runs) = (0, 0, 0);
    for seed in 0..RANDOM_SEEDS {
        let graph = random_graph(&mut Random(seed * 7919 + 3));
        let verdict = pad_verdict(&graph, &dim());
        let has_rows = verdict.outputs.iter().any(|rule| matches!(rule, OutputRule::Rows { .. }));
        if !has_rows && verdict.grade != Grade::ReplicateOnly || graph.nodes().is_empty() {
            continue;
        }
        let own_runs = check_by_running(&graph, &verdict, seed, &format!("seed {seed}"));
        accepted += usize::from(own_runs > 0);
        replicated += usize::from(own_runs > 0 && verdict.grade == Grade::ReplicateOnly);
        runs += own_runs;
        if accepted == RANDOM_ACCEPTED {
            break;
        }
    }
    assert_eq!(accepted, RANDOM_ACCEPTED);
    assert!(replicated >= RANDOM_ACCEPTED / 20, "{replicated} are ReplicateOnly");
    assert!(runs >= RANDOM_ACCEPTED * 8, "{runs} runs");
}

/// Whether padding a refused Graph anyway gives another result, or none.
fn shows_a_difference(graph: &Graph) -> bool {
    let mut random = Random(5);
    SIZES.iter().any(|&sizes| {
        let inputs = real_inputs(graph, &dim(), sizes.0, &mut random);
        let Ok(exact) = eval_graph(graph, &inputs) else { return false };
        Content::ALL.iter().any(|&content| {
            let padded = padded_inputs(graph, &dim(), &inputs, sizes, content, &mut random);
            match eval_graph(graph, &padded) {
                Ok(outputs) => !same_bits(&guessed_rows(graph, &dim(), &outputs, &exact), &exact),
                Err(_) => true,
            }
        })
    })
}

#[test]
fn refused_cases_show_why() {
    let cases = cases();
    let refused: Vec<&Case> = cases.iter().filter(|case| case.expected.starts_with("Refused")).collect();
    let idle: Vec<&str> =
        refused.iter().filter(|case| !shows_a_difference(&case.graph)).map(|case| case.name).collect();
    assert!(idle.len() * 20 <= refused.len(), "{} of {} show nothing: {idle:?}", idle.len(), refused.len());
}

/// Whether another content than copies, or chunks, change a result that the verdict says they may change.
fn needs_its_limit(graph: &Graph, verdict: &PadVerdict) -> bool {
    let mut random = Random(5);
    let sizes = SIZES[0];
    let inputs = real_inputs(graph, &dim(), sizes.0, &mut random);
    let exact = eval_graph(graph, &inputs).unwrap();
    let mut differs = |content: &Content| {
        let padded = padded_inputs(graph, &dim(), &inputs, sizes, *content, &mut random);
        let outputs: Result<Vec<Tensor>, _> = eval_graph(graph, &padded);
        outputs.is_ok_and(|outputs| !same_bits(&real_rows(&outputs, &verdict.outputs, sizes), &exact))
    };
    let by_content = verdict.grade == Grade::ReplicateOnly && Content::ALL.iter().any(&mut differs);
    let by_chunks = || {
        let joined = run_in_chunks(graph, &dim(), &inputs, &verdict.outputs, sizes.0, 1);
        joined.is_ok_and(|joined| !same_bits(&joined, &exact))
    };
    by_content || verdict.grade == Grade::Independent && by_chunks()
}

#[test]
fn limits_are_not_idle() {
    let cases = cases();
    let limited = |case: &&Case| !case.expected.starts_with("Refused") && !case.expected.contains("split");
    let limited: Vec<&Case> = cases.iter().filter(limited).collect();
    let idle: Vec<&str> = limited
        .iter()
        .filter(|case| !needs_its_limit(&case.graph, &pad_verdict(&case.graph, &dim())))
        .map(|case| case.name)
        .collect();
    assert!(limited.len() >= 10 && idle.len() * 10 <= limited.len(), "{} of {}: {idle:?}", idle.len(), limited.len());
}

#[test]
fn a_verdict_is_explained_in_one_line() {
    let explained = |graph: &str| {
        let graph = text::parse(graph, &NoConstants).unwrap();
        explain(&graph, &pad_verdict(&graph, &dim()))
    };
    let reduce = |func: &str| {
        format!(
            "graph \"\"(%0 \"x\": f32[n,4]) {{ %1 = reduce.{func}(%0) {{axes=[0], keep_dims=false}} : f32[4]  # \"/pool\"\n return \"y\" %1 }}"
        )
    };
    assert_eq!(explained(&reduce("mean")), "n  Refused  /pool averages over n → exact n only");
    let expected = "n  ReplicateOnly  /pool takes the largest element over n → pads copy a real row, never split";
    assert_eq!(explained(&reduce("max")), expected);
    let identity = "graph \"\"(%0 \"x\": f32[n,4]) { return \"y\" %0 }";
    assert_eq!(explained(identity), "n  Independent  rows of y → any pads, may be split");
    let iota =
        "graph \"\"(%0 \"x\": f32[n]) { %1 = iota() {to=f32, start=0, step=1, length=n} : f32[n]\n return \"y\" %1 }";
    assert_eq!(explained(iota), "n  Independent  iota counts rows of n → any pads, never split");
}
