//! H11: tract CVE-2026-55093, #2795: a product of dims that wraps, is negative, or asks for more memory than there is.

use precast_onnx::proto::{AttributeProto, AttributeType, TensorProto};

use crate::model::{INT64, attribute, encode, graph, node, of_initializer};
use crate::{Bench, REFUSAL_BYTES_MAX};

/// Numbers of every element type of ONNX, and of some that are none.
const ELEMENT_TYPES: std::ops::RangeInclusive<i32> = -1..=30;

#[test]
fn dims_that_the_data_does_not_fill_are_errors_for_every_type() {
    let shapes: [&[i64]; 11] = [
        &[-1],
        &[i64::MIN],
        &[i64::MAX],
        &[(1 << 62) + 2],
        &[1 << 32, 1 << 32],
        &[1 << 31, 1 << 31, 4],
        &[-1, -1],
        &[1 << 40, 1 << 40],
        &[3, 0x5555_5555_5555_5556],
        &[1; 17],
        &[2, -8],
    ];
    for data_type in ELEMENT_TYPES {
        for dims in shapes {
            let tensor = TensorProto {
                name: "w".into(),
                data_type,
                dims: dims.to_vec(),
                raw_data: Some(vec![0; 8].into()),
                ..TensorProto::default()
            };
            let bytes = of_initializer(tensor);
            let mut is_refused = false;
            let allocated = allocation_counter::measure(|| {
                let model = precast::Model::from_bytes(bytes.into());
                is_refused = model.and_then(|model| model.symbolic_graph()).is_err();
            });
            assert!(is_refused, "{data_type} {dims:?}");
            assert!(allocated.bytes_max < REFUSAL_BYTES_MAX, "{data_type} {dims:?}: {} bytes", allocated.bytes_max);
        }
    }
}

#[test]
fn what_a_node_would_make_of_a_few_numbers_is_refused_before_it_is_made() {
    let bench = Bench::new();
    let ints = |name: &str, ints: &[i64]| TensorProto {
        name: name.into(),
        data_type: INT64,
        dims: vec![ints.len() as i64],
        raw_data: Some(ints.iter().flat_map(|int| int.to_le_bytes()).collect::<Vec<u8>>().into()),
        ..TensorProto::default()
    };
    let scalar = |name: &str, int: i64| TensorProto { dims: vec![], ..ints(name, &[int]) };
    let huge = 1 << 45;
    let axis = AttributeProto { i: Some(0), ..attribute("axis", AttributeType::Int) };
    let models = [
        ("ConstantOfShape", vec![node("ConstantOfShape", &["a"], &["y"], vec![])], vec![ints("a", &[huge])]),
        ("Expand", vec![node("Expand", &["a", "b"], &["y"], vec![])], vec![ints("a", &[1]), ints("b", &[huge])]),
        ("Tile", vec![node("Tile", &["a", "b"], &["y"], vec![])], vec![ints("a", &[1]), ints("b", &[huge])]),
        (
            "Range",
            vec![node("Range", &["a", "b", "c"], &["y"], vec![])],
            vec![scalar("a", 0), scalar("b", huge), scalar("c", 1)],
        ),
        ("Pad", vec![node("Pad", &["a", "b"], &["y"], vec![])], vec![ints("a", &[1]), ints("b", &[0, huge])]),
        (
            "OneHot",
            vec![node("OneHot", &["a", "b", "c"], &["y"], vec![axis])],
            vec![ints("a", &[1]), scalar("b", huge), ints("c", &[0, 1])],
        ),
    ];
    for (name, nodes, initializers) in models {
        let outcome = bench.run_model(&encode(graph(nodes, initializers)));
        assert!([3, 5, 8].contains(&outcome.exit), "{name}: {} {}", outcome.exit, outcome.stderr);
        assert!(outcome.stderr.starts_with("error: "), "{name}: {}", outcome.stderr);
    }
}
