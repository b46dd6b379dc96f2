//! One instance of each kernel template through the vendors' own compilers, where they are installed. A template is known by
//! its entry and by the shared texts that an instance begins with.

use std::collections::BTreeSet;
use std::sync::{Mutex, OnceLock};

use precast_gpu::compile::whole_text;
use precast_gpu::kernel::{self, Arch, Launch, Vendor};
use precast_gpu::lower::lower;
use precast_gpu::site::Site;
use precast_gpu::{KernelCompiler, RuntimeCompiler};

use super::{Case, SHARED_BYTES_MAX};

/// What instances are compiled for: vendor, name and threads of a warp.
const ARCHS: [(Vendor, &str, u32); 3] =
    [(Vendor::Cuda, "sm_90", 32), (Vendor::Hip, "gfx90a", 64), (Vendor::Hip, "gfx1030", 32)];

/// Texts that several templates share.
const PARTS: [&str; 12] = [
    kernel::MATRIX,
    kernel::PRODUCT_WINDOWS,
    kernel::PRODUCT_POINTS,
    kernel::PRODUCT_MMA,
    kernel::PRODUCT_FMA,
    kernel::CONV_DEPTHWISE,
    kernel::CONV_TRANSPOSE,
    kernel::GEMV,
    kernel::STREAM_MMA_FLOATS,
    kernel::STREAM_MMA_BLOCKS,
    kernel::ATTENTION_MMA,
    kernel::ATTENTION_FMA,
];

/// An architecture, an entry, and which of the parts a text has.
type Template = (&'static str, String, u32);

/// Compiles those kernels of some cases whose template has not been compiled in this process; what went wrong.
pub fn compile_new(cases: &[Case]) -> Vec<String> {
    let mut failures = Vec::new();
    for (vendor, name, warp) in ARCHS {
        let Some(compiler) = compiler(vendor) else { continue };
        let arch =
            Arch { vendor, name: name.to_string(), warp, shared_bytes_max: SHARED_BYTES_MAX, multiprocessors: 4 };
        for case in cases {
            for node in case.graph.nodes() {
                let site = Site { graph: &case.graph, node, arch: &arch, layouts: &case.layouts };
                let launches = lower(&site).ok().flatten().map_or(Vec::new(), |lowered| lowered.launches);
                for launch in launches.iter().filter(|launch| is_new(name, launch)) {
                    let text = whole_text(&launch.text, &arch, &vec![false; launch.operands.len()]);
                    if let Err(message) = compiler.compile(&text, name) {
                        failures.push(format!("{} for {name}: {message}", case.name));
                    }
                }
            }
        }
    }
    failures
}

fn is_new(arch: &'static str, launch: &Launch) -> bool {
    static SEEN: Mutex<BTreeSet<Template>> = Mutex::new(BTreeSet::new());
    let parts = PARTS.iter().enumerate().map(|(bit, part)| u32::from(launch.text.contains(part)) << bit).sum();
    let mut seen = SEEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    seen.insert((arch, launch.entry.clone(), parts))
}

fn compiler(vendor: Vendor) -> Option<&'static RuntimeCompiler> {
    static NVRTC: OnceLock<Option<RuntimeCompiler>> = OnceLock::new();
    static HIPRTC: OnceLock<Option<RuntimeCompiler>> = OnceLock::new();
    let (place, vendor) = match vendor {
        Vendor::Cuda => (&NVRTC, precast_driver::Vendor::Cuda),
        Vendor::Hip => (&HIPRTC, precast_driver::Vendor::Hip),
    };
    let open = || RuntimeCompiler::open(vendor).map_err(|error| println!("left out: {error}")).ok();
    place.get_or_init(open).as_ref()
}
