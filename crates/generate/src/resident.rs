//! A decoder whose caches stay on its device: a step writes the keys and values of its new tokens there itself, and of its
//! scores only the token of the largest comes back, unless all are wanted. A slot behind the cached tokens of a row is free, so
//! a step that fails leaves nothing but bytes that the next one writes over.

use std::sync::Arc;
use std::time::Instant;

use precast_session::{
    ArgumentPlace, Device, DeviceMemory, DevicePlace, PlacedArgument, ResultPlace, RunReport, Session, SessionError,
};
use precast_tensor::DType;

use crate::kv_cache::{Half, LayerLayout, is_intact};
use crate::plan::{Phase, PlannedRow, Scores, StepPlan, StepShape};
use crate::text_model::{Input, InputRole, OutputRole, StepError, TextModel, read_floats, score_places};

/// Layers begin at multiples of this.
pub(crate) const ALIGNMENT: usize = 256;

/// The Sessions of a decoder whose caches stay on its device.
pub struct ResidentDecoder {
    /// Steps whose scores are wanted.
    pub scored: DecoderSession,
    /// Parts of a prompt that others follow.
    pub headless: DecoderSession,
}

/// A Session of a decoder.
pub struct DecoderSession {
    /// The Session; its dims are exact.
    pub session: Session,
    /// What its inputs are for, in order, and their element types.
    pub inputs: Vec<(InputRole, DType)>,
    /// What its outputs are, in order, and their element types.
    pub outputs: Vec<(OutputRole, DType)>,
}

/// Keys and values on a device: as `KvCache` has them, in one piece of memory.
pub struct ResidentCache {
    layouts: Vec<LayerLayout>,
    slots: usize,
    capacity: usize,
    /// For each slot the end of the farthest token that may have been written since it was empty.
    written: Vec<usize>,
    device: Arc<dyn Device>,
    memory: Arc<dyn DeviceMemory>,
    /// Where each layer's keys and values begin, and the end of all.
    starts: Vec<[usize; 2]>,
    bytes: usize,
    unread: UnreadScores,
}

/// Memory of a device for scores that nobody reads.
pub(crate) struct UnreadScores {
    device: Arc<dyn Device>,
    memory: Option<Arc<dyn DeviceMemory>>,
}

/// What a step on the device changes there.
pub(crate) struct StepPlaces<'m> {
    /// Where keys or values of a layer lie.
    pub(crate) kept: &'m dyn Fn(usize, Half) -> DevicePlace<'m>,
    /// Where scores go; none where they are read.
    pub(crate) scores: Option<&'m dyn DeviceMemory>,
}

/// What a step gave.
pub struct ResidentOutputs {
    /// Scores of each row, as many as the plan asks for, one row after another, where they were asked for.
    pub logits: Option<Vec<Vec<f32>>>,
    /// The tokens with the largest of these scores, the lowest of equal ones, and those; empty where none were wanted.
    pub best: Vec<(u32, f32)>,
    /// What the Session did.
    pub report: RunReport,
}

impl ResidentCache {
    /// An empty cache.
    pub fn new(
        device: &Arc<dyn Device>,
        layouts: &[LayerLayout],
        slots: usize,
        capacity: usize,
    ) -> Result<ResidentCache, StepError> {
        let mut bytes = 0;
        let mut starts = Vec::with_capacity(layouts.len());
        for layout in layouts {
            starts.push([layout.key_size, layout.value_size].map(|size| {
                let start = bytes;
                let own = slots * layout.heads * layout.capacity(capacity) * size * layout.dtype.size_bytes();
                bytes += own.next_multiple_of(ALIGNMENT);
                start
            }));
        }
        let memory = device.allocate(bytes.max(ALIGNMENT)).map_err(SessionError::from)?;
        Ok(ResidentCache {
            layouts: layouts.to_vec(),
            slots,
            capacity,
            written: vec![0; slots],
            device: device.clone(),
            memory,
            starts,
            bytes,
            unread: UnreadScores::new(device),
        })
    }

    /// Slots.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Tokens that a slot has room for.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of the whole cache.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the first `cached` tokens of a slot are there as far as any query behind them can see.
    pub fn is_intact(&self, slot: usize, cached: usize) -> bool {
        is_intact(self.layouts.iter(), self.capacity, self.written[slot], cached)
    }

    /// Forgets what a slot holds.
    pub fn clear(&mut self, slot: usize) {
        self.written[slot] = 0;
    }

    /// Gives successive slots, from `first` on, what the slots of these positions among them hold.
    pub fn reorder(&mut self, first: usize, parents: &[usize]) -> Result<(), StepError> {
        if parents.iter().enumerate().all(|(position, &parent)| position == parent) {
            return Ok(());
        }
        let count = parents.iter().copied().max().map_or(0, |last| last + 1).max(parents.len());
        for (layer, half) in self.halves() {
            let slot_bytes = self.slot_bytes(layer, half);
            let old = self.read(layer, half, first, count)?;
            let new: Vec<u8> =
                parents.iter().flat_map(|&parent| &old[parent * slot_bytes..][..slot_bytes]).copied().collect();
            self.memory.write(self.start(layer, half, first), &new).map_err(SessionError::from)?;
        }
        let written: Vec<usize> = parents.iter().map(|parent| self.written[first + parent]).collect();
        self.written[first..first + written.len()].copy_from_slice(&written);
        Ok(())
    }

    /// Gives a slot what another holds.
    pub fn copy_slot(&mut self, from: usize, to: usize) -> Result<(), StepError> {
        for (layer, half) in self.halves() {
            let slot = self.read(layer, half, from, 1)?;
            self.memory.write(self.start(layer, half, to), &slot).map_err(SessionError::from)?;
        }
        self.written[to] = self.written[from];
        Ok(())
    }

    /// The same tokens in a cache of other sizes, neither smaller. No layer that has wrapped changes its size.
    pub fn grown(&self, slots: usize, capacity: usize) -> Result<ResidentCache, StepError> {
        let (slots, capacity) = (slots.max(self.slots), capacity.max(self.capacity));
        let mut grown = ResidentCache::new(&self.device, &self.layouts, slots, capacity)?;
        for (layer, half) in self.halves() {
            let heads = self.layouts[layer].heads;
            let from = self.read(layer, half, 0, self.slots)?;
            let (old, new) = (self.slot_bytes(layer, half) / heads, grown.slot_bytes(layer, half) / heads);
            let mut to = vec![0; self.slots * heads * new];
            for head in 0..self.slots * heads {
                to[head * new..][..old].copy_from_slice(&from[head * old..][..old]);
            }
            grown.memory.write(grown.start(layer, half, 0), &to).map_err(SessionError::from)?;
        }
        grown.written[..self.slots].copy_from_slice(&self.written);
        Ok(grown)
    }

    fn halves(&self) -> impl Iterator<Item = (usize, Half)> + use<> {
        (0..self.layouts.len()).flat_map(|layer| [(layer, Half::Keys), (layer, Half::Values)])
    }

    fn slot_bytes(&self, layer: usize, half: Half) -> usize {
        let layout = &self.layouts[layer];
        layout.cache_shape(half, 1, self.capacity).iter().product::<usize>() * layout.dtype.size_bytes()
    }

    /// Where a slot of a layer's keys or values begins.
    fn start(&self, layer: usize, half: Half, slot: usize) -> usize {
        self.starts[layer][half as usize] + slot * self.slot_bytes(layer, half)
    }

    fn place(&self, layer: usize, half: Half, slot: usize) -> DevicePlace<'_> {
        DevicePlace { memory: &*self.memory, start: self.start(layer, half, slot) }
    }

    fn read(&self, layer: usize, half: Half, first: usize, slots: usize) -> Result<Vec<u8>, StepError> {
        let mut bytes = vec![0; slots * self.slot_bytes(layer, half)];
        self.memory.read(self.start(layer, half, first), &mut bytes).map_err(SessionError::from)?;
        Ok(bytes)
    }

    /// Notes what a step is about to write.
    fn note(&mut self, plan: &StepPlan) {
        for row in &plan.rows {
            self.written[row.slot] = self.written[row.slot].max(row.cached + row.valid);
        }
    }
}

impl UnreadScores {
    /// No memory yet.
    pub(crate) fn new(device: &Arc<dyn Device>) -> UnreadScores {
        UnreadScores { device: device.clone(), memory: None }
    }

    /// Room for so many bytes.
    pub(crate) fn room(&mut self, bytes: usize) -> Result<Arc<dyn DeviceMemory>, StepError> {
        match self.memory.clone().filter(|memory| memory.bytes() >= bytes) {
            Some(memory) => Ok(memory),
            None => {
                let memory = self.device.allocate(bytes).map_err(SessionError::from)?;
                self.memory = Some(memory.clone());
                Ok(memory)
            }
        }
    }
}

impl TextModel {
    /// The device that keeps caches, if it does.
    pub fn cache_device(&self) -> Option<&Arc<dyn Device>> {
        self.resident()?.scored.session.devices().first()
    }

    /// The device that keeps pages of an engine, if it does.
    pub fn page_device(&self) -> Option<&Arc<dyn Device>> {
        self.paged_for(false)?.scored.session.devices().first()
    }

    /// Runs a step on a cache of the device. `tokens[i]` are the valid new tokens of row i of the plan.
    pub fn run_resident(
        &self,
        decoder: &ResidentDecoder,
        plan: &StepPlan,
        tokens: &[&[u32]],
        cache: &mut ResidentCache,
        reads_scores: bool,
    ) -> Result<ResidentOutputs, StepError> {
        let decoder = decoder.for_plan(plan);
        cache.note(plan);
        let scores = match reads_scores {
            true => None,
            false => Some(cache.unread.room(self.score_bytes(decoder, plan))?),
        };
        let inputs = self.resident_inputs(&decoder.inputs, plan, tokens);
        let kept = |layer, half| cache.place(layer, half, plan.first_slot());
        self.run_in_place(decoder, plan, &inputs, &StepPlaces { kept: &kept, scores: scores.as_deref() })
    }

    /// Bytes of the scores of a step; of one without scores, so many that there is memory.
    pub(crate) fn score_bytes(&self, decoder: &DecoderSession, plan: &StepPlan) -> usize {
        let logits = decoder.outputs.iter().find(|(role, _)| *role == OutputRole::Logits);
        let bytes = logits.map(|&(role, dtype)| self.output_elements(role, plan) * dtype.size_bytes());
        bytes.unwrap_or(0).max(ALIGNMENT)
    }

    /// Runs a step whose keys and values are changed where they lie on the device.
    pub(crate) fn run_in_place<'m>(
        &self,
        DecoderSession { session, outputs, .. }: &DecoderSession,
        plan: &StepPlan,
        inputs: &'m [Input],
        memory: &StepPlaces<'m>,
    ) -> Result<ResidentOutputs, StepError> {
        let arguments: Vec<PlacedArgument<'_>> = inputs.iter().map(|input| argument(input, memory.kept)).collect();
        let is_read = |role: OutputRole| match role {
            OutputRole::Logits => memory.scores.is_none(),
            OutputRole::Best | OutputRole::BestScore => true,
            OutputRole::Cache(..) | OutputRole::Present(..) => false,
        };
        let mut buffers: Vec<Vec<u64>> = outputs
            .iter()
            .map(|&(role, dtype)| {
                let bytes = if is_read(role) { self.output_elements(role, plan) * dtype.size_bytes() } else { 0 };
                vec![0; bytes.div_ceil(size_of::<u64>())]
            })
            .collect();
        let mut places = Vec::with_capacity(outputs.len());
        for (buffer, &(role, dtype)) in buffers.iter_mut().zip(outputs) {
            let bytes = self.output_elements(role, plan) * dtype.size_bytes();
            places.push(match (role, memory.scores) {
                (OutputRole::Cache(layer, half), _) => ResultPlace::Device((memory.kept)(layer, half)),
                (OutputRole::Logits, Some(memory)) => ResultPlace::Device(DevicePlace { memory, start: 0 }),
                _ => ResultPlace::Host(&mut bytemuck::cast_slice_mut(buffer)[..bytes]),
            });
        }
        let begun = Instant::now();
        let report = session.run_placed(&arguments, &mut places)?;
        self.tell(plan, &report, begun);
        let mut logits = None;
        let (mut ids, mut scores) = (Vec::new(), Vec::new());
        for (buffer, &(role, dtype)) in buffers.iter().zip(outputs) {
            match role {
                OutputRole::Logits if memory.scores.is_none() => {
                    logits = Some(self.read_logits(bytemuck::cast_slice(buffer), dtype, plan)?)
                }
                OutputRole::Best => ids = buffer.iter().map(|&id| id as u32).collect(),
                OutputRole::BestScore => {
                    let bytes = self.output_elements(role, plan) * dtype.size_bytes();
                    scores = read_floats(&bytemuck::cast_slice(buffer)[..bytes], dtype)?;
                }
                OutputRole::Logits | OutputRole::Cache(..) | OutputRole::Present(..) => {}
            }
        }
        let best = |place: usize| Some((*ids.get(place)?, *scores.get(place)?));
        Ok(ResidentOutputs { logits, best: score_places(plan).filter_map(best).collect(), report })
    }

    /// Compiles or loads the Program of a step of this shape, so that no step waits for it.
    pub fn prepare_resident(
        &self,
        decoder: &ResidentDecoder,
        shape: StepShape,
        wants_scores: bool,
    ) -> Result<(), StepError> {
        let plan = full_plan(shape, wants_scores);
        let (tokens, decoder) = (vec![0; shape.length], decoder.for_plan(&plan));
        let tokens = vec![&tokens[..]; shape.rows];
        decoder.prepare(&self.resident_inputs(&decoder.inputs, &plan, &tokens))
    }

    fn resident_inputs(&self, roles: &[(InputRole, DType)], plan: &StepPlan, tokens: &[&[u32]]) -> Vec<Input> {
        let StepShape { rows, capacity, .. } = plan.shape;
        let input = |&(role, dtype): &(InputRole, DType)| match role {
            InputRole::Past(layer, half) => {
                Input::Cache { dtype, layer, half, shape: self.layers()[layer].cache_shape(half, rows, capacity) }
            }
            role => Input::numbers(role, dtype, plan, tokens),
        };
        roles.iter().map(input).collect()
    }
}

/// Where an input lies: numbers of the plan on the host, keys and values on the device.
fn argument<'a>(input: &'a Input, kept: &dyn Fn(usize, Half) -> DevicePlace<'a>) -> PlacedArgument<'a> {
    let (dtype, shape) = input.form();
    let place = match input {
        Input::Integers { .. } => ArgumentPlace::Host(input.bytes()),
        Input::Cache { layer, half, .. } => ArgumentPlace::Device(kept(*layer, *half)),
    };
    PlacedArgument { dtype, shape, place }
}

/// A step that fills a Program.
pub(crate) fn full_plan(shape: StepShape, wants_scores: bool) -> StepPlan {
    let row = |slot| PlannedRow { slot, cached: 0, valid: shape.length, is_last: wants_scores };
    let rows = (0..shape.rows).map(row).collect();
    StepPlan { phase: Phase::Prefill, shape, rows, scores: Scores::Last, is_long: false }
}

impl DecoderSession {
    /// Compiles or loads the Program of a step with such inputs.
    pub(crate) fn prepare(&self, inputs: &[Input]) -> Result<(), StepError> {
        let forms = inputs.iter().map(Input::form);
        let forms = forms.map(|(dtype, shape)| PlacedArgument { dtype, shape, place: ArgumentPlace::Host(&[]) });
        self.session.prepare_placed(&forms.collect::<Vec<PlacedArgument<'_>>>())?;
        Ok(())
    }
}

impl ResidentDecoder {
    /// What runs a plan: without scores if no row's are wanted.
    pub(crate) fn for_plan(&self, plan: &StepPlan) -> &DecoderSession {
        match plan.scores == Scores::All || plan.rows.iter().any(|row| row.is_last) {
            true => &self.scored,
            false => &self.headless,
        }
    }
}
