//! How fast this machine copies memory: what a step that reads all weights cannot be faster than.

use std::time::Instant;

use precast::device_name::DeviceKind;
use precast::generate::TextModel;

/// Bytes that each thread copies: far more than a core's caches hold.
const BYTES_A_THREAD: usize = 64 << 20;
/// Copies of which the fastest counts; the first also brings the pages in.
const COPIES: usize = 5;

/// Bytes that the model's device reads and writes a second while it copies, with so many threads. None of a GPU, whose memory
/// this door cannot copy by itself.
pub fn copy_bandwidth(model: &TextModel, threads: usize) -> Option<f64> {
    (model.device() == DeviceKind::Cpu.name()).then(|| host_bandwidth(threads))
}

fn host_bandwidth(threads: usize) -> f64 {
    let buffers = || (vec![1_u8; BYTES_A_THREAD], vec![0_u8; BYTES_A_THREAD]);
    let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = (0..threads.max(1)).map(|_| buffers()).collect();
    let mut fastest_s = f64::MAX;
    for _ in 0..COPIES {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            for (from, to) in &mut pairs {
                scope.spawn(|| to.copy_from_slice(std::hint::black_box(from)));
            }
        });
        fastest_s = fastest_s.min(begun.elapsed().as_secs_f64());
    }
    (2 * BYTES_A_THREAD * pairs.len()) as f64 / fastest_s.max(f64::MIN_POSITIVE)
}
