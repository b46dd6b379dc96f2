//! Random ONNX graphs over the whole op set, valid by construction. Functions that jump are put on exact values alone, so
//! that a last bit cannot become a difference.

pub use super::growing::Generated;
use super::growing::Growing;
use super::makers::{self, Maker};
use super::mutate::Random;

/// Versions of ai.onnx that graphs are written in: the last one is newer than onnxruntime and is judged by ourselves alone.
const OPSETS: [i64; 12] = [18, 18, 20, 20, 21, 21, 22, 22, 23, 23, 24, 28];
/// Version of ai.onnx that examples of one operator are written in, unless it is newer.
const EXAMPLE_OPSET: i64 = 21;
/// Nodes of the largest graph.
const NODES_MAX: usize = 20;
/// Of so many graphs one may have random operators.
const RANDOM_GRAPHS: usize = 16;
/// Nodes that are tried for each that is wanted.
const TRIES: usize = 3;

/// The graph of a seed.
pub fn generate(seed: u64) -> Generated {
    let mut random = Random::new(seed);
    let opset = *random.pick(&OPSETS);
    let wanted = 1 + random.below(NODES_MAX);
    // What another runtime draws by itself it cannot judge, so random operators have graphs of their own.
    let is_random = random.once_in(RANDOM_GRAPHS);
    let mut makers = makers::of_opset(opset);
    makers.retain(|maker| is_random || !maker.is_random());
    let mut growing = Growing::new(random, opset);
    for _ in 0..TRIES * wanted {
        if growing.node_count() >= wanted {
            break;
        }
        let maker = *growing.random.pick(&makers);
        let _ = (maker.make)(&mut growing, maker.operator);
    }
    growing.finish()
}

/// A graph of one maker, if it finds something to make with this seed.
pub fn example(maker: &Maker, seed: u64) -> Option<Generated> {
    let opset = maker.since.max(EXAMPLE_OPSET);
    let mut growing = Growing::new(Random::new(seed), opset);
    (maker.make)(&mut growing, maker.operator)?;
    Some(growing.finish())
}
