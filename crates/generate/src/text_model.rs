//! A decoder that is opened on a device: its Session, what each of the Session's inputs and outputs is for, and the
//! configuration of its folder. Immutable, cheap to clone, shared by threads.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use precast_session::{Argument, Bucket, RunReport, Session, SessionError};
use precast_tensor::{DType, Tensor, TensorError};

use crate::adapter::{Adapter, OpenAdapted};
use crate::config::GenerationConfig;
use crate::kv_cache::{Half, KvCache, LayerLayout, NoMemory};
use crate::ladder::Ladders;
use crate::plan::{Phase, PlannedRow, ProgramSet, Scores as PlanScores, StepPlan, StepShape};
use crate::resident::{DecoderSession, ResidentDecoder};
use crate::roles::{CountForm, CountOf, Roles};
use crate::spare_memory::SpareMemory;
use crate::step_buffers::{Scores, StepBuffers, is_shared};

/// What an input of the Session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputRole {
    /// New tokens [rows, length].
    Ids,
    /// Their positions [rows, length].
    Positions,
    /// Which slots of the cache, and behind them which new tokens, are tokens: [rows, capacity + length].
    Mask,
    /// Tokens that are cached, i32 [rows].
    Lengths,
    /// New tokens that count, i32 [rows]; none of rows that are filler.
    NewTokens,
    /// Behind which new tokens scores are wanted, i64 [rows, scored].
    LogitsIndex,
    /// Pages of each row in the order of its tokens, i32 [rows, row_pages]; below 0 where there is none.
    Pages,
    /// A number of tokens, for all rows or for each.
    Count(CountOf, CountForm),
    /// Keys or values of a layer's cache, or of its pages.
    Past(usize, Half),
}

/// What an output of the Session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OutputRole {
    /// Scores [rows, scored, vocabulary].
    Logits,
    /// Keys or values of the new tokens of a layer [rows, heads, length, size].
    Present(usize, Half),
    /// A layer's cache, or its pages, with the new tokens in it.
    Cache(usize, Half),
    /// The token of the largest score, i64 [rows, scored, 1].
    Best,
    /// That score [rows, scored, 1].
    BestScore,
}

/// Symbols of a decoder's Graph: rows of a step.
pub const ROWS: &str = "rows";
/// New tokens of a row.
pub const LENGTH: &str = "length";
/// Slots of a cache.
pub const CAPACITY: &str = "capacity";
/// Tokens of a row behind which scores are wanted.
pub const SCORED: &str = "scored";
/// Pages of all rows.
pub const PAGES: &str = "pages";
/// Tokens of a page.
pub const PAGE_TOKENS: &str = "page_tokens";
/// Pages that a row has room for.
pub const ROW_PAGES: &str = "row_pages";

/// Why a decoder's step did not run.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The Session failed.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The scores are of a type that cannot be read.
    #[error(transparent)]
    Tensor(#[from] TensorError),
    /// There is no memory for keys and values.
    #[error(transparent)]
    Memory(#[from] NoMemory),
}

/// Opens a decoder anew, on its device; says why where that cannot be.
pub type Reopen = Arc<dyn Fn() -> Result<TextModel, String> + Send + Sync>;

/// A decoder on a device.
#[derive(Clone)]
pub struct TextModel {
    /// The decoder with its own parameters.
    pub(crate) shared: Arc<TextModelParts>,
    /// Whose values it has instead, and the decoder with them.
    pub(crate) adapted: Option<(Adapter, Arc<TextModelParts>)>,
    pub(crate) open_adapted: Option<OpenAdapted>,
    spare: Arc<SpareMemory>,
    reopen: Option<Reopen>,
    draft: Option<Arc<TextModel>>,
    watchers: Vec<StepWatcher>,
}

/// Who is told what every step of a decoder ran and how long it took, whichever thread ran it.
pub type StepWatcher = Arc<dyn Fn(&StepPlan, &RunReport, Duration) + Send + Sync>;

/// What a TextModel is made of.
pub struct TextModelParts {
    /// The configuration of its folder.
    pub config: GenerationConfig,
    /// The Session of steps whose scores are wanted; its dims are exact.
    pub session: Session,
    /// What the Session's inputs are for, in order, and their element types.
    pub inputs: Vec<(InputRole, DType)>,
    /// What the Session's outputs are, in order, and their element types.
    pub outputs: Vec<(OutputRole, DType)>,
    /// The decoder without its scores, for parts of a prompt that others follow.
    pub headless: Headless,
    /// The same decoder where its device keeps caches.
    pub resident: Option<ResidentDecoder>,
    /// The same where its device keeps the pages of an engine.
    pub paged: Option<ResidentDecoder>,
    /// Why its device does not, where it keeps caches.
    pub host_pages: Option<String>,
    /// The decoder as it computes long rows, where that differs.
    pub long: Option<LongDecoder>,
    /// Which of the graph's inputs and outputs is what.
    pub roles: Roles,
    /// What each layer caches.
    pub layers: Vec<LayerLayout>,
    /// Ids that scores have.
    pub vocabulary: usize,
    /// Bytes of constants that every step reads whole.
    pub weight_bytes: u64,
    /// Sizes that have Programs.
    pub ladders: Ladders,
    /// Whether a step takes a larger Program that is there rather than wait for one of its own.
    pub pads_up: bool,
    /// Canonical name of the device.
    pub device: String,
    /// Done when the decoder is closed: last, as fields are dropped in their order, and Sessions are before it.
    pub on_close: OnClose,
}

/// What is done when it is dropped.
#[derive(Default)]
pub struct OnClose(Option<Box<dyn Fn() + Send + Sync>>);

impl OnClose {
    /// Does this.
    pub fn new(what: impl Fn() + Send + Sync + 'static) -> OnClose {
        OnClose(Some(Box::new(what)))
    }
}

impl Drop for OnClose {
    fn drop(&mut self) {
        self.0.iter().for_each(|what| what());
    }
}

/// A decoder as it computes rows of more tokens than a limit, such as with another rotary table. Keys of the one are of no use
/// to the other.
pub struct LongDecoder {
    /// Most tokens of a row that is not long.
    pub limit: usize,
    /// Steps whose scores are wanted.
    pub scored: DecoderSession,
    /// Parts of a prompt that others follow.
    pub headless: DecoderSession,
    /// The same where its device keeps caches.
    pub resident: Option<ResidentDecoder>,
    /// The same where its device keeps the pages of an engine.
    pub paged: Option<ResidentDecoder>,
}

/// A decoder that gives keys and values alone.
pub struct Headless {
    /// Its Session.
    pub session: Session,
    /// What the Session's inputs are for, in order, and their element types.
    pub inputs: Vec<(InputRole, DType)>,
    /// What the Session's outputs are, in order, and their element types.
    pub outputs: Vec<(OutputRole, DType)>,
}

/// What a step gave, beside the keys and values that its buffers hold.
pub struct StepOutputs {
    /// Scores of each row of the plan, as many as the plan asks for, one row after another; empty where no row's were wanted.
    pub logits: Vec<Scores>,
    /// What the Session did.
    pub report: RunReport,
}

impl TextModel {
    /// A decoder of these parts.
    pub fn new(parts: TextModelParts) -> TextModel {
        TextModel {
            shared: Arc::new(parts),
            adapted: None,
            open_adapted: None,
            spare: Arc::default(),
            reopen: None,
            draft: None,
            watchers: Vec::new(),
        }
    }

    /// The same decoder, which can be opened anew when its device has failed.
    pub fn with_reopen(self, reopen: Reopen) -> TextModel {
        TextModel { reopen: Some(reopen), ..self }
    }

    /// The same decoder with a smaller one that proposes its tokens; both must have the same vocabulary.
    pub fn with_draft(self, draft: TextModel) -> Result<TextModel, String> {
        let (expected, found) = (self.vocabulary(), draft.vocabulary());
        if expected != found {
            return Err(format!("model.draft has {found} ids; {expected}, as the decoder, were expected"));
        }
        Ok(TextModel { draft: Some(Arc::new(draft)), ..self })
    }

    /// The decoder that proposes its tokens, if there is one.
    pub fn draft(&self) -> Option<&TextModel> {
        self.draft.as_deref()
    }

    /// Opens the decoder anew, after its device has failed.
    pub fn reopen(&self) -> Result<TextModel, String> {
        let reopen = self.reopen.as_ref().ok_or("nothing here can open its model again")?;
        let model = reopen()?.with_reopen(reopen.clone());
        model.with_adapter(self.adapter()).map_err(|error| error.to_string())
    }

    /// The same decoder, with one more who is told of the steps of this handle and of those cloned from it.
    pub fn watched(mut self, watcher: StepWatcher) -> TextModel {
        self.watchers.push(watcher);
        self
    }

    /// Tells of a step that began then and has ended.
    pub(crate) fn tell(&self, plan: &StepPlan, report: &RunReport, begun: Instant) {
        if !self.watchers.is_empty() {
            let took = begun.elapsed();
            self.watchers.iter().for_each(|watcher| watcher(plan, report, took));
        }
    }

    /// The configuration of its folder.
    pub fn config(&self) -> &GenerationConfig {
        &self.parts().config
    }

    /// Ids that scores have.
    pub fn vocabulary(&self) -> usize {
        self.parts().vocabulary
    }

    /// Bytes of constants that every step reads whole; tables of which a step looks up a few rows are not among them.
    pub fn weight_bytes(&self) -> u64 {
        self.parts().weight_bytes
    }

    /// Sizes that have Programs.
    pub fn ladders(&self) -> &Ladders {
        &self.parts().ladders
    }

    /// Programs that steps whose scores are wanted may count on: where larger ones are taken, those that are there.
    pub fn ready(&self) -> ProgramSet {
        if !self.parts().pads_up {
            return ProgramSet::Any;
        }
        let session = self.resident().map_or(&self.parts().session, |decoder| &decoder.scored.session);
        ready_programs(session, PlanScores::Last)
    }

    /// As `ready`, for steps on caches of the host that give these scores, or none.
    pub(crate) fn ready_on_host(&self, is_scored: bool, scores: PlanScores) -> ProgramSet {
        match self.parts().pads_up {
            true if is_scored => ready_programs(&self.parts().session, scores),
            true => ready_programs(&self.parts().headless.session, PlanScores::Last),
            false => ProgramSet::Any,
        }
    }

    /// Which of the graph's inputs and outputs is what.
    pub fn roles(&self) -> &Roles {
        &self.parts().roles
    }

    /// What each layer caches.
    pub fn layers(&self) -> &[LayerLayout] {
        &self.parts().layers
    }

    /// Canonical name of the device.
    pub fn device(&self) -> &str {
        &self.parts().device
    }

    /// The Session that runs its Programs.
    pub fn session(&self) -> &Session {
        &self.parts().session
    }

    /// The same decoder where its device keeps caches.
    pub fn resident(&self) -> Option<&ResidentDecoder> {
        self.parts().resident.as_ref()
    }

    /// The same decoder where its device keeps caches, for rows that are long or not.
    pub(crate) fn resident_for(&self, is_long: bool) -> Option<&ResidentDecoder> {
        match self.parts().long.as_ref().filter(|_| is_long) {
            Some(long) => long.resident.as_ref(),
            None => self.resident(),
        }
    }

    /// The same decoder where its device keeps the pages of an engine, for rows that are long or not.
    pub(crate) fn paged_for(&self, is_long: bool) -> Option<&ResidentDecoder> {
        match self.parts().long.as_ref().filter(|_| is_long) {
            Some(long) => long.paged.as_ref(),
            None => self.parts().paged.as_ref(),
        }
    }

    /// Why its device does not keep the pages of an engine, where it keeps the caches of generators.
    pub fn host_pages(&self) -> Option<&str> {
        self.parts().host_pages.as_deref()
    }

    /// Most tokens of a row that is not long, where long ones are computed in another way.
    pub fn length_switch(&self) -> Option<usize> {
        self.parts().long.as_ref().map(|long| long.limit)
    }

    /// Whether a row of so many tokens is computed as long ones are.
    pub fn is_long(&self, length: usize) -> bool {
        self.length_switch().is_some_and(|limit| length > limit)
    }

    /// Memory of its steps and caches that are over.
    pub(crate) fn spare(&self) -> &SpareMemory {
        &self.spare
    }

    /// Bytes of keys and values that a token takes in all layers.
    pub fn kv_bytes_per_token(&self) -> usize {
        self.layers().iter().map(LayerLayout::token_bytes).sum()
    }

    /// Runs a step. `tokens[i]` are the valid new tokens of row i of the plan. Their keys and values are left in `buffers`.
    pub fn run(
        &self,
        plan: &StepPlan,
        tokens: &[&[u32]],
        cache: &KvCache,
        buffers: &mut StepBuffers,
    ) -> Result<StepOutputs, StepError> {
        let Ports { session, inputs, outputs: roles } = self.ports_for(plan);
        let inputs: Vec<Input> =
            inputs.iter().map(|&(role, dtype)| Input::of(role, dtype, plan, tokens, cache)).collect();
        let arguments: Vec<Argument<'_>> = inputs.iter().map(|input| input.argument(plan, cache)).collect();
        let bytes = |role, dtype: DType| self.output_elements(role, plan) * dtype.size_bytes();
        let begun = Instant::now();
        let report = session.run_into(&arguments, &mut buffers.prepare(roles, bytes, &self.spare))?;
        self.tell(plan, &report, begun);
        let logits = match roles.iter().position(|(role, _)| *role == OutputRole::Logits) {
            None => vec![Scores::default(); plan.rows.len()],
            Some(place) if is_shared(&roles[place]) => {
                buffers.share_scores(score_places(plan), self.parts().vocabulary)
            }
            Some(place) => {
                let (_, bytes) = buffers.outputs().nth(place).unwrap_or((OutputRole::Logits, &[]));
                let scores = self.read_logits(bytes, roles[place].1, plan)?;
                scores.into_iter().map(Scores::from).collect()
            }
        };
        Ok(StepOutputs { logits, report })
    }

    /// Compiles or loads the Program of a step of this shape, so that no step waits for it.
    pub fn prepare(&self, shape: StepShape, wants_scores: bool) -> Result<(), StepError> {
        match self.resident() {
            Some(decoder) => self.prepare_resident(decoder, shape, wants_scores),
            None => self.prepare_on_host(shape, wants_scores),
        }
    }

    /// As `prepare`, of a step whose caches are the host's.
    pub(crate) fn prepare_on_host(&self, shape: StepShape, wants_scores: bool) -> Result<(), StepError> {
        let row = |slot| PlannedRow { slot, cached: 0, valid: shape.length, is_last: wants_scores };
        let rows = (0..shape.rows).map(row).collect();
        let plan = StepPlan { phase: Phase::Prefill, shape, rows, scores: PlanScores::Last, is_long: false };
        let cache = KvCache::try_new(self.layers(), shape.rows, shape.capacity)?;
        let (tokens, Ports { session, inputs, .. }) = (vec![0; shape.length], self.ports_for(&plan));
        let tokens = vec![&tokens[..]; shape.rows];
        let inputs: Vec<Input> =
            inputs.iter().map(|&(role, dtype)| Input::of(role, dtype, &plan, &tokens, &cache)).collect();
        let arguments: Vec<Argument<'_>> = inputs.iter().map(|input| input.argument(&plan, &cache)).collect();
        session.output_shapes(&arguments)?;
        Ok(())
    }

    /// Prepares, on a thread of its own, the steps that a first prompt of one row can ask for while its cache has not grown:
    /// decoding first, then every length of a prompt, the longest first.
    pub fn prepare_first_steps(&self) -> std::io::Result<JoinHandle<()>> {
        let model = self.clone();
        std::thread::Builder::new().name("precast-prepare".to_string()).spawn(move || {
            let ladders = model.ladders();
            let lengths = ladders.length.sizes().iter().copied().filter(|&length| length > 1).rev();
            let steps = [(1, true)].into_iter().chain(lengths.map(|length| (length, true)));
            let long = ladders.long_chunk.into_iter().flat_map(|long| [(long, true), (long, false)]);
            for (length, wants_scores) in steps.chain([(ladders.length.largest(), false)]).chain(long) {
                let capacity = ladders.capacity_at_first(length, None);
                let shape = StepShape { rows: 1, length, capacity };
                // The step that needs it meets the same failure and tells its caller.
                if model.prepare(shape, wants_scores).is_err() {
                    return;
                }
            }
        })
    }

    /// What runs a plan: without scores if no row's are wanted.
    fn ports_for(&self, plan: &StepPlan) -> Ports<'_> {
        let TextModelParts { session, inputs, outputs, headless, long, .. } = self.parts();
        let is_scored = plan.scores == PlanScores::All || plan.rows.iter().any(|row| row.is_last);
        if let Some(long) = long.as_ref().filter(|_| plan.is_long) {
            let DecoderSession { session, inputs, outputs } = if is_scored { &long.scored } else { &long.headless };
            return Ports { session, inputs, outputs };
        }
        match is_scored {
            true => Ports { session, inputs, outputs },
            false => Ports { session: &headless.session, inputs: &headless.inputs, outputs: &headless.outputs },
        }
    }

    pub(crate) fn output_elements(&self, role: OutputRole, plan: &StepPlan) -> usize {
        match role {
            OutputRole::Best | OutputRole::BestScore => plan.shape.rows * plan.scored(),
            OutputRole::Cache(layer, half) => {
                let StepShape { rows, capacity, .. } = plan.shape;
                self.parts().layers[layer].cache_shape(half, rows, capacity).iter().product()
            }
            OutputRole::Logits => plan.shape.rows * plan.scored() * self.parts().vocabulary,
            OutputRole::Present(layer, half) => {
                let layout = &self.parts().layers[layer];
                let size = match half {
                    Half::Keys => layout.key_size,
                    Half::Values => layout.value_size,
                };
                plan.shape.rows * layout.heads * plan.shape.length * size
            }
        }
    }

    /// Scores of the rows of a plan as f32.
    pub(crate) fn read_logits(
        &self,
        bytes: &[u8],
        dtype: DType,
        plan: &StepPlan,
    ) -> Result<Vec<Vec<f32>>, TensorError> {
        let row_bytes = self.parts().vocabulary * dtype.size_bytes();
        let row = |row: usize| read_floats(&bytes[row * row_bytes..][..row_bytes], dtype);
        score_places(plan).map(row).collect()
    }
}

/// Which of a step's scores are those of the plan's rows, row by row.
pub(crate) fn score_places(plan: &StepPlan) -> impl Iterator<Item = usize> {
    let scored = plan.scored();
    plan.rows.iter().flat_map(move |row| (0..scored).map(move |number| plan.position(row) * scored + number))
}

/// Programs of a Session that are there and give these scores.
fn ready_programs(session: &Session, scores: PlanScores) -> ProgramSet {
    ProgramSet::Ready(session.loaded().iter().filter_map(|bucket| shape_of(bucket, scores)).collect())
}

/// Sizes of a Program if it gives these scores of a sequence. The capacity is none where every layer has a window of its own.
fn shape_of(bucket: &Bucket, scores: PlanScores) -> Option<StepShape> {
    let size =
        |symbol: &str| bucket.dims().find(|(name, _)| *name == symbol).and_then(|(_, size)| size.try_into().ok());
    let shape = StepShape { rows: size(ROWS)?, length: size(LENGTH)?, capacity: size(CAPACITY).unwrap_or(0) };
    let wanted = match scores {
        PlanScores::Last => 1,
        PlanScores::All => shape.length,
    };
    size(SCORED).is_none_or(|scored: usize| scored == wanted).then_some(shape)
}

/// Elements of a float type as f32.
pub(crate) fn read_floats(bytes: &[u8], dtype: DType) -> Result<Vec<f32>, TensorError> {
    match dtype {
        DType::F32 => Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(floats) => floats.to_vec(),
            Err(_) => bytes.as_chunks().0.iter().map(|&element| f32::from_le_bytes(element)).collect(),
        }),
        // The upper half of an f32; an engine's step has millions of them.
        DType::BF16 => {
            let elements = bytes.as_chunks().0.iter();
            Ok(elements.map(|&element| f32::from_bits(u32::from(u16::from_le_bytes(element)) << 16)).collect())
        }
        _ => {
            let tensor = Tensor::new(dtype, vec![bytes.len() / dtype.size_bytes()], bytes.to_vec().into())?;
            Ok(tensor.to_f64_vec().into_iter().map(|score| score as f32).collect())
        }
    }
}

/// A Session and what its inputs and outputs are.
struct Ports<'m> {
    session: &'m Session,
    inputs: &'m [(InputRole, DType)],
    outputs: &'m [(OutputRole, DType)],
}

/// What lies behind the numbers of an input: the least of either integer type, which is no token, position or length. Who reads
/// past the end of an input fails, or answers wrongly in every test, and not only where memory happens to hold something else.
const GUARD: u64 = 0x8000_0000_8000_0000;

/// One input of a step.
pub(crate) enum Input {
    /// Integers made from the plan, and a guard behind them.
    Integers { dtype: DType, shape: Vec<usize>, words: Vec<u64> },
    /// Keys or values where they lie.
    Cache { dtype: DType, layer: usize, half: Half, shape: [usize; 4] },
}

impl Input {
    fn of(role: InputRole, dtype: DType, plan: &StepPlan, tokens: &[&[u32]], cache: &KvCache) -> Input {
        match role {
            InputRole::Past(layer, half) => {
                Input::Cache { dtype, layer, half, shape: cache.shape(layer, half, plan.shape.rows) }
            }
            role => Input::numbers(role, dtype, plan, tokens),
        }
    }

    /// An input that is made from the plan; of caches and pages, no numbers.
    pub(crate) fn numbers(role: InputRole, dtype: DType, plan: &StepPlan, tokens: &[&[u32]]) -> Input {
        let (rows, length) = (plan.shape.rows, plan.shape.length);
        let a_token = |value: &dyn Fn(usize, usize) -> i64| {
            let values = (0..rows).flat_map(|row| (0..length).map(move |step| (row, step)));
            Input::integers(dtype, vec![rows, length], values.map(|(row, step)| value(row, step)))
        };
        // Filler rows repeat the first row, filler steps the last valid one of their row: they are as tame as the real ones.
        let by_position = plan.rows_by_position();
        let planned = |row: usize| by_position[row].unwrap_or(0);
        match role {
            InputRole::Ids => a_token(&|row, step| {
                let tokens = tokens[planned(row)];
                i64::from(tokens[step.min(tokens.len() - 1)])
            }),
            InputRole::Positions => a_token(&|row, step| {
                let row = &plan.rows[planned(row)];
                (row.cached + step.min(row.valid - 1)) as i64
            }),
            InputRole::Mask => {
                let (capacity, total) = (plan.shape.capacity, plan.shape.capacity + length);
                let is_token = |(row, column): (usize, usize)| {
                    let row = &plan.rows[planned(row)];
                    column < row.cached || (column >= capacity && column - capacity < row.valid)
                };
                let places = (0..rows).flat_map(|row| (0..total).map(move |column| (row, column)));
                Input::integers(dtype, vec![rows, total], places.map(|place| i64::from(is_token(place))))
            }
            InputRole::Lengths => {
                Input::integers(dtype, vec![rows], (0..rows).map(|row| plan.rows[planned(row)].cached as i64))
            }
            InputRole::LogitsIndex => {
                let scored = plan.scored();
                let places = (0..rows).flat_map(|row| (0..scored).map(move |number| (row, number)));
                let index = |(row, number)| plan.logits_index(&plan.rows[planned(row)], number) as i64;
                Input::integers(dtype, vec![rows, scored], places.map(index))
            }
            InputRole::NewTokens => {
                let valid = |row: &Option<usize>| row.map_or(0, |row| plan.rows[row].valid as i64);
                Input::integers(dtype, vec![rows], by_position.iter().map(valid))
            }
            InputRole::Count(of, form) => {
                let count = |row: &PlannedRow| match of {
                    CountOf::Past => row.cached as i64,
                    CountOf::New => row.valid as i64,
                    CountOf::Total => (row.cached + row.valid) as i64,
                };
                let largest = || plan.rows.iter().map(count).max().into_iter();
                match form {
                    CountForm::Scalar => Input::integers(dtype, Vec::new(), largest()),
                    CountForm::Single => Input::integers(dtype, vec![1], largest()),
                    CountForm::Rows => {
                        Input::integers(dtype, vec![rows], (0..rows).map(|row| count(&plan.rows[planned(row)])))
                    }
                }
            }
            InputRole::Past(..) | InputRole::Pages => Input::integers(dtype, Vec::new(), std::iter::empty()),
        }
    }

    /// An input of these numbers.
    pub(crate) fn integers(dtype: DType, shape: Vec<usize>, values: impl Iterator<Item = i64>) -> Input {
        let bytes: Vec<u8> = match dtype {
            DType::I32 => values.flat_map(|value| (value as i32).to_le_bytes()).collect(),
            _ => values.flat_map(i64::to_le_bytes).collect(),
        };
        let mut words = vec![GUARD; bytes.len().div_ceil(size_of::<u64>()) + 1];
        bytemuck::cast_slice_mut(&mut words)[..bytes.len()].copy_from_slice(&bytes);
        Input::Integers { dtype, shape, words }
    }

    fn argument<'i>(&'i self, plan: &StepPlan, cache: &'i KvCache) -> Argument<'i> {
        let (dtype, shape) = self.form();
        let bytes = match self {
            Input::Integers { .. } => self.bytes(),
            Input::Cache { layer, half, .. } => cache.read(*layer, *half, plan.first_slot(), plan.shape.rows),
        };
        Argument { dtype, shape, bytes }
    }

    /// Its element type and sizes.
    pub(crate) fn form(&self) -> (DType, &[usize]) {
        match self {
            Input::Integers { dtype, shape, .. } => (*dtype, shape),
            Input::Cache { dtype, shape, .. } => (*dtype, shape),
        }
    }

    /// Bytes of numbers; none of a cache.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Input::Integers { dtype, shape, words } => {
                let bytes = shape.iter().product::<usize>() * dtype.size_bytes();
                &bytemuck::cast_slice(words)[..bytes]
            }
            Input::Cache { .. } => &[],
        }
    }
}
