//! A repeated request allocates nothing, whether it is exact, padded or split.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use precast_cache::{CacheOptions, Mode, ProgramCache};
use precast_cpu::{CpuDevice, CpuTarget, Isa};
use precast_ir::attr::NoConstants;
use precast_ir::text;
use precast_session::{Argument, BucketPolicy, DimOptions, OutputBuffer, Session, SessionOptions, Startup, Tier};
use precast_tensor::Tensor;

const ROWS: &str = r#"graph "rows"(%0 "x": f32[n,2], %1 "s": f32[]) {
  %2 = constant f32[2,3] [1.0, -2.0, 0.5, 3.0, 0.25, -1.0]
  %3 = matmul(%0, %2) {transpose_a=false, transpose_b=false} : f32[n,3]
  %4 = binary.mul(%3, %1) : f32[n,3]
  return "y" %4, "t" %3
}
"#;

#[test]
fn the_ultra_fast_path_allocates_nothing() {
    let mut options = SessionOptions { measures: false, startup: Startup::All, ..SessionOptions::default() };
    options.dims.insert("n".to_string(), DimOptions { buckets: BucketPolicy::PowersOfTwo { max: 8 } });
    let cache = ProgramCache::open(CacheOptions { mode: Mode::Off, ..CacheOptions::new("") }).unwrap();
    let target = Arc::new(CpuTarget::new(Isa::detect(), 1, Default::default()));
    let graph = text::parse(ROWS, &NoConstants).unwrap();
    let session = Session::open_graph(&graph, options, target, Arc::new(CpuDevice::new(1)), Arc::new(cache)).unwrap();
    for rows in [1, 3, 8, 11, 100] {
        let x = Tensor::from_vec([rows, 2], (0..rows * 2).map(|at| at as f32).collect()).unwrap();
        let s = Tensor::scalar(0.5_f32);
        let arguments = [Argument::from(&x), Argument::from(&s)];
        let (mut y, mut t) = (OutputBuffer::new(rows * 12), OutputBuffer::new(rows * 12));
        let mut outputs = [y.as_bytes_mut(), t.as_bytes_mut()];
        session.run_into(&arguments, &mut outputs).unwrap();
        let mut report = None;
        let counted = allocation_counter::measure(|| {
            for _ in 0..100 {
                report = session.run_into(&arguments, &mut outputs).ok();
            }
        });
        assert_eq!(report.unwrap().tier, Tier::UltraFast);
        assert_eq!(counted.count_total, 0, "{rows} rows");
    }
}
