//! How long it takes until every worker has begun its task and the caller knows: `cargo run --release --example pool_speed -p precast-kernels`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use precast_kernels::pool::ThreadPool;

fn main() {
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    let pool = ThreadPool::new(threads);
    for (name, pause) in [
        ("at once", Duration::ZERO),
        ("after 200 us", Duration::from_micros(200)),
        ("parked", Duration::from_millis(5)),
    ] {
        let count = if pause.is_zero() { 20_000 } else { 300 };
        let mut times: Vec<Duration> = (0..count)
            .map(|_| {
                if !pause.is_zero() {
                    std::thread::sleep(pause);
                }
                let started = Instant::now();
                let begun = AtomicUsize::new(0);
                pool.run(threads, &|_| {
                    begun.fetch_add(1, Ordering::Relaxed);
                    while begun.load(Ordering::Relaxed) < threads {
                        std::hint::spin_loop();
                    }
                });
                started.elapsed()
            })
            .collect();
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_nanos() as f64 / 1e3;
        println!(
            "{threads} threads, {name}: median {:.2} us, 99 % {:.2} us, longest {:.2} us",
            at(0.5),
            at(0.99),
            at(1.0)
        );
    }
}
