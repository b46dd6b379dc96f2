//! H13: shapes that a client sends and nothing fits: huge, wrapping, of another rank, empty. Each is an error that names the
//! input, without a panic and without memory for what the shape claims.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cache::{CacheOptions, Mode, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::text;
use precast_session::{Argument, BucketPolicy, DimOptions, OnMiss, Session, SessionOptions, Startup};
use precast_tensor::DType;

/// Rows of four numbers.
const ROWS: &str = r#"graph "rows"(%0 "x": f32[n,4]) {
  %1 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n,4]
  return "y" %1
}
"#;
/// Both sizes are the client's.
const BOTH: &str = r#"graph "both"(%0 "x": f32[n,m]) {
  %1 = unary.relu(%0) {alpha=0.0, beta=0.0} : f32[n,m]
  return "y" %1
}
"#;
/// Bytes that the client sends whatever it says about them.
const SENT: [u8; 64] = [0; 64];
/// Bytes that a refusal may take at once.
const REFUSAL_BYTES_MAX: u64 = 1 << 20;
/// `-1` as a client's library may pass it on.
const MINUS_ONE: usize = usize::MAX;
/// The largest size that is a number to everybody.
const LARGEST: usize = i64::MAX as usize;

fn open(source: &str, on_miss: OnMiss) -> Session {
    let mut options = SessionOptions { measures: false, startup: Startup::All, ..SessionOptions::default() };
    options.on_miss = on_miss.into();
    let buckets = BucketPolicy::PowersOfTwo { max: 8 };
    options.dims.insert("n".to_string(), DimOptions { buckets: buckets.clone() });
    if source.contains(",m]") {
        options.dims.insert("m".to_string(), DimOptions { buckets });
    }
    let cache = ProgramCache::open(CacheOptions { mode: Mode::Off, ..CacheOptions::new("") }).unwrap();
    let target = Arc::new(CpuTarget::new(Isa::detect(), 1, Default::default()));
    let graph = text::parse(source, &NoConstants).unwrap();
    Session::open_graph(&graph, options, target, Arc::new(CpuDevice::new(1)), Arc::new(cache)).unwrap()
}

/// Sixty shapes and more that 64 bytes of f32 are not: each edge beside each other one, and ranks that are not the model's.
fn hostile_shapes() -> Vec<Vec<usize>> {
    let edges = [LARGEST, MINUS_ONE, LARGEST + 1, 1 << 62, 1 << 32, (1 << 62) + 4, 0x5555_5555_5555_5556];
    let mut shapes: Vec<Vec<usize>> = vec![vec![], vec![16], vec![LARGEST], vec![4, 4, 1], vec![1; 9], vec![1; 64]];
    for edge in edges {
        shapes.extend([vec![edge], vec![edge, 16], vec![16, edge], vec![edge, 4], vec![4, edge]]);
        shapes.extend([vec![edge, edge], vec![edge, 4, 4], vec![2, edge, 2]]);
    }
    // Products that wrap around to the 16 elements that were sent.
    shapes.extend([vec![(1 << 62) + 4, 4], vec![1 << 32, 1 << 32], vec![MINUS_ONE, MINUS_ONE - 15]]);
    shapes.extend([vec![5, 4], vec![3, 4], vec![16, 1]]);
    shapes
}

/// Asks for the shapes of outputs and for a run, and gives what the Session says of the first.
fn ask(session: &Session, shape: &[usize], bytes: &[u8]) -> Result<Vec<Vec<usize>>, String> {
    let argument = [Argument { dtype: DType::F32, shape, bytes }];
    let mut outcome = Ok(Vec::new());
    let allocated = allocation_counter::measure(|| {
        outcome = session.output_shapes(&argument).map_err(|error| error.to_string());
        let mut output = [0; SENT.len()];
        let ran = session.run_into(&argument, &mut [&mut output[..bytes.len()]]);
        assert!(ran.is_err() || outcome.is_ok(), "{shape:?} ran and has no shape");
    });
    assert!(allocated.bytes_max < REFUSAL_BYTES_MAX, "{shape:?}: {} bytes", allocated.bytes_max);
    outcome
}

#[test]
fn sixty_hostile_shapes_are_errors_that_name_the_input() {
    let shapes = hostile_shapes();
    assert!(shapes.len() >= 60);
    for on_miss in [OnMiss::Wait, OnMiss::Reference] {
        let session = open(ROWS, on_miss);
        for shape in &shapes {
            let told = ask(&session, shape, &SENT).unwrap_err();
            assert!(told.contains("'x'"), "{shape:?}: {told}");
        }
        assert_eq!(ask(&session, &[4, 4], &SENT), Ok(vec![vec![4, 4]]));
    }
}

/// A size of 0 makes any other size one of no bytes.
#[test]
fn a_size_of_nothing_does_not_excuse_the_others() {
    for on_miss in [OnMiss::Wait, OnMiss::Reference] {
        let session = open(BOTH, on_miss);
        for size in [9, 1 << 20, 1 << 32, 1 << 62, LARGEST, LARGEST + 1, MINUS_ONE] {
            for shape in [[size, 0], [0, size]] {
                // No bytes are any number of rows of nothing; what is answered has the same form.
                if let Ok(outputs) = ask(&session, &shape, &[]) {
                    assert_eq!(outputs, [shape.to_vec()]);
                }
            }
        }
        assert_eq!(ask(&session, &[0, 4], &[]), Ok(vec![vec![0, 4]]));
    }
}
