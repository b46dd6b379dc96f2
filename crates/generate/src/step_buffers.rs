//! Memory that the outputs of a decoder's steps lie in. A step of many rows gives megabytes of scores, keys and values, so
//! that asking the system for them anew in every step would cost more than reading them.

use std::ops::{Deref, Range};
use std::sync::Arc;

use precast_tensor::DType;

use crate::kv_cache::Half;
use crate::spare_memory::SpareMemory;
use crate::text_model::OutputRole;

/// Scores of one position, before any rule, where a step left them.
#[derive(Clone, Debug, Default)]
pub struct Scores {
    /// Those of all positions of the step.
    all: Arc<Vec<f32>>,
    places: Range<usize>,
}

impl Deref for Scores {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.all[self.places.clone()]
    }
}

impl From<Vec<f32>> for Scores {
    fn from(scores: Vec<f32>) -> Scores {
        Scores { places: 0..scores.len(), all: Arc::new(scores) }
    }
}

/// Sets of scores that buffers keep, those that others still hold included: a step of an engine has several runs.
const SCORES_KEPT: usize = 8;

/// Words of an output that are kept where a step needs fewer; more are spare then, for the next long prompt: what tokens behind
/// one need is far less.
const WORDS_KEPT: usize = 1 << 14;

/// Memory that the outputs of steps lie in: that of a step is a later one's as soon as nobody holds its scores.
#[derive(Default)]
pub struct StepBuffers {
    /// Words, so that elements of every type are aligned; some may be left of a longer step.
    words: Vec<Vec<u64>>,
    /// What the last step left in each, and its bytes.
    outputs: Vec<(OutputRole, usize)>,
    /// Scores of f32, the last step's last.
    scores: Vec<Arc<Vec<f32>>>,
}

impl StepBuffers {
    /// Makes room for outputs of these sizes in bytes.
    pub(crate) fn prepare(
        &mut self,
        outputs: &[(OutputRole, DType)],
        bytes: impl Fn(OutputRole, DType) -> usize,
        spare: &SpareMemory,
    ) -> Vec<&mut [u8]> {
        self.words.resize_with(self.words.len().max(outputs.len()), Vec::new);
        self.outputs = outputs.iter().map(|&(role, dtype)| (role, bytes(role, dtype))).collect();
        let scores = outputs.iter().zip(&self.outputs).find(|(output, _)| is_shared(output));
        let mut scores = scores.map(|(_, &(_, bytes))| room_for_scores(&mut self.scores, bytes / size_of::<f32>()));
        let mut slices = Vec::with_capacity(outputs.len());
        for ((words, output), &(_, bytes)) in self.words.iter_mut().zip(outputs).zip(&self.outputs) {
            let slice: &mut [u8] = match scores.take_if(|_| is_shared(output)) {
                Some(scores) => bytemuck::cast_slice_mut(scores),
                None => {
                    let needed = bytes.div_ceil(size_of::<u64>());
                    if words.len() < needed || words.len() > WORDS_KEPT.max(needed) {
                        give_back(words, spare);
                        *words = if needed > WORDS_KEPT { spare.words(needed) } else { vec![0; needed] };
                    }
                    bytemuck::cast_slice_mut(words)
                }
            };
            slices.push(&mut slice[..bytes]);
        }
        slices
    }

    /// Gives back what is large, once no step follows.
    pub(crate) fn end(&mut self, spare: &SpareMemory) {
        self.words.iter_mut().for_each(|words| give_back(words, spare));
    }

    /// What the last step left; nothing of scores of f32, which lie elsewhere.
    pub(crate) fn outputs(&self) -> impl Iterator<Item = (OutputRole, &[u8])> {
        let outputs = self.words.iter().zip(&self.outputs);
        outputs.map(|(words, &(role, bytes))| (role, bytemuck::cast_slice(words).get(..bytes).unwrap_or_default()))
    }

    /// Scores of f32 that the last step left, of these positions and so many ids.
    pub(crate) fn share_scores(&self, positions: impl Iterator<Item = usize>, vocabulary: usize) -> Vec<Scores> {
        let all = self.scores.last().cloned().unwrap_or_default();
        let places = |position: usize| position * vocabulary..(position + 1) * vocabulary;
        positions.map(|position| Scores { all: all.clone(), places: places(position) }).collect()
    }

    /// Keys and values of the last step's new tokens by layer: bytes of [rows, heads, length, size].
    pub fn present(&self) -> impl Iterator<Item = (usize, Half, &[u8])> {
        self.outputs().filter_map(|(role, bytes)| match role {
            OutputRole::Present(layer, half) => Some((layer, half, bytes)),
            OutputRole::Logits | OutputRole::Cache(..) | OutputRole::Best | OutputRole::BestScore => None,
        })
    }
}

/// Makes words spare if they are many.
fn give_back(words: &mut Vec<u64>, spare: &SpareMemory) {
    if words.len() > WORDS_KEPT {
        spare.give_words(std::mem::take(words));
    }
}

/// Whether an output is read where it lies, by whoever asked for the step.
pub(crate) fn is_shared(&(role, dtype): &(OutputRole, DType)) -> bool {
    role == OutputRole::Logits && dtype == DType::F32
}

/// Memory for so many scores that nobody holds, as the last of the kept ones.
fn room_for_scores(kept: &mut Vec<Arc<Vec<f32>>>, count: usize) -> &mut Vec<f32> {
    let free = kept.iter_mut().position(|scores| Arc::get_mut(scores).is_some_and(|scores| scores.len() >= count));
    let free = free.or_else(|| kept.iter_mut().position(|scores| Arc::get_mut(scores).is_some()));
    let mut scores = free.map_or_else(Arc::default, |place| kept.remove(place));
    if kept.len() >= SCORES_KEPT {
        kept.remove(0);
    }
    if Arc::get_mut(&mut scores).is_none_or(|scores| scores.len() < count) {
        scores = Arc::new(vec![0.0; count]);
    }
    kept.push(scores);
    kept.last_mut().and_then(Arc::get_mut).expect("memory that nobody else holds was chosen or made")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUTS: [(OutputRole, DType); 2] =
        [(OutputRole::Logits, DType::F32), (OutputRole::Present(0, Half::Keys), DType::F32)];

    fn step(buffers: &mut StepBuffers, scores: &[f32], keys: &[f32]) -> Vec<Scores> {
        let values = [scores, keys];
        let bytes = |role, _| 4 * if role == OutputRole::Logits { scores.len() } else { keys.len() };
        for (slice, values) in buffers.prepare(&OUTPUTS, bytes, &SpareMemory::default()).into_iter().zip(values) {
            slice.copy_from_slice(bytemuck::cast_slice(values));
        }
        buffers.share_scores(0..scores.len() / 2, 2)
    }

    #[test]
    fn memory_is_used_again_when_nobody_holds_scores() {
        let mut buffers = StepBuffers::default();
        let first = step(&mut buffers, &[1.0, 2.0, 3.0, 4.0], &[5.0]);
        assert_eq!((&first[0][..], &first[1][..]), (&[1.0, 2.0][..], &[3.0, 4.0][..]));
        let address = first[0].as_ptr();
        let second = step(&mut buffers, &[6.0, 7.0], &[8.0, 9.0]);
        assert_eq!((&first[1][..], &second[0][..]), (&[3.0, 4.0][..], &[6.0, 7.0][..]));
        let keys: Vec<&[u8]> = buffers.present().map(|(_, _, bytes)| bytes).collect();
        assert_eq!(keys, [bytemuck::cast_slice::<f32, u8>(&[8.0, 9.0])]);
        drop((first, second));
        assert_eq!(step(&mut buffers, &[1.5; 4], &[2.5])[0].as_ptr(), address);
    }

    #[test]
    fn memory_of_a_long_step_is_let_go_by_a_short_one() {
        let (mut buffers, spare) = (StepBuffers::default(), SpareMemory::default());
        let mut prepare = |words: usize| buffers.prepare(&OUTPUTS[1..], |_, _| 8 * words, &spare)[0].as_ptr();
        let long = prepare(2 * WORDS_KEPT);
        prepare(1);
        assert_eq!(prepare(2 * WORDS_KEPT), long);
        buffers.end(&spare);
        let words = spare.words(2 * WORDS_KEPT);
        assert_eq!(words.as_ptr().cast(), long);
    }
}
