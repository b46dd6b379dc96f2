//! Kernels of Buckets that are compiled side by side.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};

use precast_gpu::compile::{KernelsInWork, compile_all};
use precast_gpu::{Arch, KernelCompiler, MemoryKernels, Vendor};

const BUCKETS: usize = 7;

/// Gives a text as its own machine code, and counts.
#[derive(Default)]
struct CountingCompiler(AtomicUsize);

impl KernelCompiler for CountingCompiler {
    fn version(&self) -> String {
        "counting".to_string()
    }

    fn compile(&self, text: &str, _: &str) -> Result<Vec<u8>, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        // Others ask for the same text meanwhile.
        std::thread::yield_now();
        if text == "wrong" { Err("it is wrong".to_string()) } else { Ok(text.as_bytes().to_vec()) }
    }
}

fn arch() -> Arch {
    let name = "sm_90".to_string();
    Arch { vendor: Vendor::Cuda, name, warp: 32, shared_bytes_max: 64 << 10, multiprocessors: 132 }
}

#[test]
fn a_text_that_several_need_at_once_is_compiled_once() {
    let (compiler, kernels, in_work) =
        (CountingCompiler::default(), MemoryKernels::default(), KernelsInWork::default());
    let start = Barrier::new(BUCKETS);
    let compile = |bucket: usize| {
        let texts = ["a", "b", "c"].map(str::to_string).into_iter().chain([format!("own {bucket}")]);
        let texts: Vec<String> = texts.collect();
        start.wait();
        let codes = compile_all(&texts, &arch(), &compiler, &kernels, &in_work).unwrap();
        assert_eq!(codes, texts.iter().map(|text| text.as_bytes().to_vec()).collect::<Vec<_>>());
    };
    std::thread::scope(|scope| {
        let compile = &compile;
        (0..BUCKETS).for_each(|bucket| drop(scope.spawn(move || compile(bucket))));
    });
    assert_eq!(compiler.0.load(Ordering::Relaxed), 3 + BUCKETS);
}

#[test]
fn a_text_that_does_not_compile_is_an_error_for_all_who_need_it() {
    let (compiler, kernels, in_work) =
        (CountingCompiler::default(), MemoryKernels::default(), KernelsInWork::default());
    let texts = ["right".to_string(), "wrong".to_string()];
    let compile = || compile_all(&texts, &arch(), &compiler, &kernels, &in_work);
    std::thread::scope(|scope| {
        let compiling = [scope.spawn(compile), scope.spawn(compile)];
        compiling.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), Err("it is wrong".to_string())));
    });
}
