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
use crate::text_model::{Input, InputRole, OutputRole, StepError, TextModel, read_floats};

/// Layers begin at multiples of this.
const ALIGNMENT: usize = 256;

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
    /// Where scores go that nobody reads.
    scores: Option<Arc<dyn DeviceMemory>>,
}

/// What a step gave.
pub struct ResidentOutputs {
    /// Scores of each row, where they were asked for.
    pub logits: Option<Vec<Vec<f32>>>,
    /// The token with the largest score of each row, the lowest of equal ones, and that score; empty where none were wanted.
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
            scores: None,
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

    /// Makes room for scores that nobody reads.
    fn reserve_scores(&mut self, bytes: usize) -> Result<(), StepError> {
        if self.scores.as_ref().is_none_or(|scores| scores.bytes() < bytes) {
            self.scores = Some(self.device.allocate(bytes).map_err(SessionError::from)?);
        }
        Ok(())
    }
}

impl TextModel {
    /// The device that keeps caches, if it does.
    pub fn cache_device(&self) -> Option<&Arc<dyn Device>> {
        self.resident()?.scored.session.devices().first()
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
        let DecoderSession { session, inputs, outputs } = decoder.for_plan(plan);
        cache.note(plan);
        if let (Some((_, dtype)), false) = (outputs.iter().find(|(role, _)| *role == OutputRole::Logits), reads_scores)
        {
            cache.reserve_scores(self.output_elements(OutputRole::Logits, plan) * dtype.size_bytes())?;
        }
        let inputs = self.resident_inputs(inputs, plan, tokens);
        let arguments: Vec<PlacedArgument<'_>> = inputs.iter().map(|input| argument(input, plan, cache)).collect();
        let is_read = |role: OutputRole| match role {
            OutputRole::Logits => reads_scores,
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
            places.push(match role {
                OutputRole::Cache(layer, half) => ResultPlace::Device(cache.place(layer, half, plan.first_slot())),
                _ if is_read(role) => ResultPlace::Host(&mut bytemuck::cast_slice_mut(buffer)[..bytes]),
                _ => ResultPlace::Device(DevicePlace {
                    memory: &**cache.scores.as_ref().expect("reserved above"),
                    start: 0,
                }),
            });
        }
        let begun = Instant::now();
        let report = session.run_placed(&arguments, &mut places)?;
        self.tell(plan, &report, begun);
        let mut logits = None;
        let (mut ids, mut scores) = (Vec::new(), Vec::new());
        for (buffer, &(role, dtype)) in buffers.iter().zip(outputs) {
            match role {
                OutputRole::Logits if reads_scores => {
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
        let best = |row: &PlannedRow| Some((*ids.get(plan.position(row))?, *scores.get(plan.position(row))?));
        Ok(ResidentOutputs { logits, best: plan.rows.iter().filter_map(best).collect(), report })
    }

    /// Compiles or loads the Program of a step of this shape, so that no step waits for it.
    pub fn prepare_resident(
        &self,
        decoder: &ResidentDecoder,
        shape: StepShape,
        wants_scores: bool,
    ) -> Result<(), StepError> {
        let row = |slot| PlannedRow { slot, cached: 0, valid: shape.length, is_last: wants_scores };
        let rows = (0..shape.rows).map(row).collect();
        let plan = StepPlan { phase: Phase::Prefill, shape, rows, scores: Scores::Last, is_long: false };
        let (tokens, DecoderSession { session, inputs, .. }) = (vec![0; shape.length], decoder.for_plan(&plan));
        let tokens = vec![&tokens[..]; shape.rows];
        let inputs = self.resident_inputs(inputs, &plan, &tokens);
        let forms = inputs.iter().map(Input::form);
        let forms = forms.map(|(dtype, shape)| PlacedArgument { dtype, shape, place: ArgumentPlace::Host(&[]) });
        let forms: Vec<PlacedArgument<'_>> = forms.collect();
        session.prepare_placed(&forms)?;
        Ok(())
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

/// Where an input lies: numbers of the plan on the host, caches on the device.
fn argument<'a>(input: &'a Input, plan: &StepPlan, cache: &'a ResidentCache) -> PlacedArgument<'a> {
    let (dtype, shape) = input.form();
    let place = match input {
        Input::Integers { .. } => ArgumentPlace::Host(input.bytes()),
        Input::Cache { layer, half, .. } => ArgumentPlace::Device(cache.place(*layer, *half, plan.first_slot())),
    };
    PlacedArgument { dtype, shape, place }
}

impl ResidentDecoder {
    /// What runs a plan: without scores if no row's are wanted.
    fn for_plan(&self, plan: &StepPlan) -> &DecoderSession {
        match plan.scores == Scores::All || plan.rows.iter().any(|row| row.is_last) {
            true => &self.scored,
            false => &self.headless,
        }
    }
}
