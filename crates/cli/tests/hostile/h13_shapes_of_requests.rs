//! H13: Triton 2.51.0: a shape in a request that aborts the process. There is no server; what a client could send to one comes
//! in through files and flags here, and through a Session (`sixty_hostile_shapes_are_errors_that_name_the_input`).

use std::fs;

use precast_onnx::proto::{
    DataType, DimensionProto, DimensionValue, TensorShapeProto, TensorTypeProto, TypeProto, TypeValue, ValueInfoProto,
};

use crate::model::{encode, graph, node};
use crate::{Bench, MODEL, REFUSED};

/// The exit codes of a request that does not fit: of flags, of the model's form, of a budget.
const REFUSALS: [i32; 3] = [2, MODEL, REFUSED];

/// y = relu(x) of rows of four numbers.
fn relu() -> Vec<u8> {
    let dims = [DimensionValue::DimParam("n".into()), DimensionValue::DimValue(4)];
    let dim = dims.map(|value| DimensionProto { value: Some(value), ..DimensionProto::default() }).to_vec();
    let tensor = TensorTypeProto { elem_type: DataType::Float as i32, shape: Some(TensorShapeProto { dim }) };
    let r#type = Some(TypeProto { value: Some(TypeValue::TensorType(tensor)), ..TypeProto::default() });
    let mut graph = graph(vec![node("Relu", &["x"], &["y"], vec![])], vec![]);
    graph.input = vec![ValueInfoProto { name: "x".into(), r#type, ..ValueInfoProto::default() }];
    encode(graph)
}

/// Sizes that are none, or of more memory than anybody has.
const SIZES: [&str; 15] = [
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "18446744073709551616",
    "4611686018427387906",
    "-1",
    "-9223372036854775808",
    "4294967296",
    "4294967295",
    "2147483648",
    "1e9",
    "0x10",
    "",
    " ",
    "n",
];

#[test]
fn hostile_shapes_in_flags_are_refused_by_the_door() {
    let bench = Bench::new();
    fs::write(bench.path("m.onnx"), relu()).unwrap();
    for size in SIZES {
        for shape in [format!("{size}x4"), format!("4x{size}"), format!("{size}x{size}"), size.to_string()] {
            let outcome = bench.run(&format!("run m.onnx '--shape=x:{shape}'"));
            assert!(REFUSALS.contains(&outcome.exit), "{shape}: {} {}", outcome.exit, outcome.stderr);
            assert!(
                outcome.stderr.contains('x') && outcome.stderr.starts_with("error: "),
                "{shape}: {}",
                outcome.stderr
            );
        }
    }
}

/// A file whose header claims any shape for its 64 bytes.
#[test]
fn hostile_shapes_in_files_are_refused_by_the_door() {
    let bench = Bench::new();
    fs::write(bench.path("m.onnx"), relu()).unwrap();
    let mut shapes: Vec<String> = SIZES.iter().flat_map(|size| [format!("{size}, 4"), format!("4, {size}")]).collect();
    shapes.extend(
        ["", "16,", "4, 4, 1", "4611686018427387908, 4", "4294967296, 4294967296", "5, 4", "3, 4"].map(str::to_string),
    );
    for shape in shapes {
        let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({shape}), }}");
        let header = format!("{text:<117}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        bytes.extend([0; 64]);
        fs::write(bench.path("x.npy"), bytes).unwrap();
        let outcome = bench.run("run m.onnx --input x=x.npy");
        assert!(REFUSALS.contains(&outcome.exit), "({shape}): {} {}", outcome.exit, outcome.stderr);
        assert!(outcome.stderr.contains('x') && outcome.stderr.starts_with("error: "), "({shape}): {}", outcome.stderr);
    }
}
