//! Opens a model folder for text generation: its configuration, its device, its decoder as a Session.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use precast_cache::{CacheOptions, Mode, ProgramCache};
use precast_generate::adapter::{Adapter, Adapters, Parameters};
use precast_generate::config::{self, Folder, GenerationConfig, NamedDevice, Provider, Source};
use precast_generate::engine::{Engine, EngineOptions};
use precast_generate::ladder::Ladders;
use precast_generate::resident::{DecoderSession, ResidentDecoder};
use precast_generate::roles::{CountForm, CountOf};
use precast_generate::step_trace::StepTrace;
use precast_generate::text_model::{Headless, InputRole, LongDecoder, OnClose, TextModel, TextModelParts};
use precast_generate::tokenizer::{TOKENIZER_FILE, Tokenizer};
use precast_ir::Graph;
use precast_passes::ActivationPrecision;
use precast_program::{Device, Target};
use precast_session::{Interface, OnMiss, OnMissChain, Session, SessionOptions, Startup};

use crate::adapter::{SharedConstants, check_parameters, load_adapter};
use crate::decoder_graph::{DecoderGraph, DecoderMachine, DecoderPart, decoder_graphs};
use crate::device_name::{DeviceKind, DeviceName, resolve_device_with_notice};
use crate::error::Error;
use crate::model::{InputInfo, Model};
use crate::open_device::{OpenDevice, open_device};
use crate::runner::RunnerOptions;

/// Tokens of a prompt that run at once on the CPU.
const CHUNK_ON_CPU: usize = 128;
/// Tokens of a long prompt that run at once on the CPU: weights of few bits are made f32 once for all of them.
const LONG_CHUNK_ON_CPU: usize = 512;
/// Tokens of a prompt that run at once on a GPU.
const CHUNK_ON_GPU: usize = 512;
/// Rows that a generator has Programs for, unless asked for more.
const ROWS_MAX: usize = 64;
/// What ONNX Runtime calls the severity of warnings.
const SEVERITY_OF_NOTICES: usize = 2;

/// How a model folder is opened.
#[derive(Clone, Debug)]
pub struct TextOptions {
    /// Instruction set, passes and captures. Its device counts only where `device` is none, its threads where neither
    /// `threads` nor the folder says how many.
    pub runner: RunnerOptions,
    /// Threads of a run, whatever the folder says.
    pub threads: Option<usize>,
    /// The device; what the folder says, else the CPU, unless set.
    pub device: Option<DeviceName>,
    /// Changes to the folder's configuration, in order.
    pub overlays: Vec<Source>,
    /// Folder of the cache of Programs; none keeps them in memory only.
    pub cache: Option<PathBuf>,
    /// Most rows of a decode step.
    pub rows_max: usize,
    /// What answers a step whose Program is not there, whatever the folder says.
    pub on_miss: Option<OnMissChain>,
    /// Answer every step by reference evaluation: the oracle, slow, and nothing is compiled.
    pub is_reference: bool,
}

impl Default for TextOptions {
    fn default() -> TextOptions {
        let (runner, overlays) = (RunnerOptions::default(), Vec::new());
        let (device, cache, on_miss) = (None, None, None);
        let threads = None;
        TextOptions { runner, threads, device, overlays, cache, rows_max: ROWS_MAX, on_miss, is_reference: false }
    }
}

impl TextOptions {
    /// Asks for a device by any of its names. The first that is asked for is the device; the CPU behind it means nothing, and
    /// any other second device is an error. Gives what a person should know if they wrote another name.
    pub fn append_provider(&mut self, name: &str) -> Result<Option<String>, Error> {
        let resolved = resolve_device_with_notice(name)?;
        match self.device {
            None => self.device = Some(resolved.name),
            Some(_) if resolved.name.kind == DeviceKind::Cpu => {}
            Some(first) => {
                let second = resolved.name;
                return Err(Error::Request(format!("'{second}' is a second device; '{first}' is the device already")));
            }
        }
        Ok(resolved.notice)
    }
}

/// A model folder that is open.
pub struct TextFolder {
    /// The decoder on its device.
    pub model: TextModel,
    /// The adapters that were loaded for it.
    pub adapters: Adapters,
    /// Parameters of the decoder that adapters may replace.
    pub parameters: Vec<InputInfo>,
    /// The tokenizer, where the folder has one.
    pub tokenizer: Option<Tokenizer>,
    /// What a person should know about how the folder was read.
    pub notices: Vec<String>,
}

/// A device that is open already, and the target that compiles for it.
pub struct GivenDevice {
    /// Its name.
    pub name: DeviceName,
    /// Compiles for it.
    pub target: Arc<dyn Target>,
    /// Runs what was compiled.
    pub device: Arc<dyn Device>,
}

/// Opens a model folder.
pub fn open_text_model(directory: &Path, options: &TextOptions) -> Result<TextFolder, Error> {
    let mut folder = open(directory, options, None)?;
    let (directory, options) = (directory.to_path_buf(), options.clone());
    let reopen = move || match open(&directory, &options, None) {
        Ok(folder) => Ok(folder.model),
        Err(error) => Err(error.to_string()),
    };
    folder.model = folder.model.with_reopen(Arc::new(reopen));
    folder.adapters = Adapters::new(&folder.model);
    Ok(folder)
}

/// Opens a model folder on a device that is open already, whatever the folder says.
pub fn open_text_model_on(directory: &Path, options: &TextOptions, device: GivenDevice) -> Result<TextFolder, Error> {
    open(directory, options, Some(device))
}

fn open(directory: &Path, options: &TextOptions, given: Option<GivenDevice>) -> Result<TextFolder, Error> {
    let folder = Folder::open(directory)?;
    let config = read_config(&folder, options)?;
    let mut notices = config.notices.clone();
    let (device, notice) = match &given {
        Some(given) => (given.name, None),
        None => device_of(&config, options)?,
    };
    notices.extend(notice);
    let runner = runner_options(&config, device, options)?;
    let trace = match &config.model.decoder.profile {
        Some(beginning) => Some(StepTrace::create(&folder, beginning)?),
        None => None,
    };
    let log_severity = config.model.decoder.log_severity;
    let path = folder.path(&config.model.decoder.filename)?;
    let tokenizer = open_tokenizer(&folder, &config, &mut notices)?;
    let cache = Arc::new(ProgramCache::open(cache_options(options))?);
    let device = match given {
        Some(GivenDevice { name, target, device }) => {
            OpenDevice { target, device, more: Vec::new(), cpu: None, label: name.to_string() }
        }
        None => open_device(&runner, &cache)?,
    };
    let draft = match &config.model.draft {
        Some(draft) => {
            let path = folder.path(&draft.filename)?;
            let mut config = config.clone();
            (config.model.decoder, config.model.draft) = (draft.clone(), None);
            let (model, device, cache) = (Model::open(&path)?, device.share(), cache.clone());
            let (runner, options) = (runner.clone(), options.clone());
            Some(DecoderOpener { model, config, runner, options, device, cache }.open(&mut notices)?)
        }
        None => None,
    };
    let (decoder, options) = (Model::open(&path)?, options.clone());
    let parameters = decoder.replaceable_inputs()?;
    let opener = DecoderOpener { model: decoder, config, runner, options, device, cache };
    let mut model = opener.open(&mut notices)?;
    if let Some(draft) = draft {
        model = model.with_draft(draft).map_err(Error::Request)?;
    }
    if let Some(trace) = trace {
        notices.push(format!("steps are traced to '{}'", trace.path().display()));
        model = model.watched(Arc::new(move |plan, report, took| trace.note(plan, report, took)));
    }
    if log_severity > SEVERITY_OF_NOTICES {
        notices.clear();
    }
    let adapters = Adapters::new(&model);
    Ok(TextFolder { model, adapters, parameters, tokenizer, notices })
}

/// How the decoder is compiled and run: what the caller says counts before what the folder says.
fn runner_options(
    config: &GenerationConfig,
    device: DeviceName,
    options: &TextOptions,
) -> Result<RunnerOptions, Error> {
    let decoder = &config.model.decoder;
    let mut runner = RunnerOptions { device, ..options.runner.clone() };
    runner.threads = match (options.threads, decoder.threads) {
        (Some(threads), _) => threads,
        (None, 0) => runner.threads,
        (None, threads) => threads,
    };
    runner.passes.numerics.activations = activations(config, &runner)?;
    // Levels below the fused rewrites keep the rounding of the graph as it is written.
    runner.passes.numerics.is_strict |=
        matches!(decoder.optimization_level.as_deref(), Some("ORT_DISABLE_ALL" | "ORT_ENABLE_BASIC"));
    runner.captures.is_on &= decoder.providers.first().and_then(Provider::captures).unwrap_or(true);
    if let Some(mebibytes) = config.tuning.graph_budget_mb {
        runner.captures.max_bytes = (mebibytes as u64) << 20;
    }
    Ok(runner)
}

fn cache_options(options: &TextOptions) -> CacheOptions {
    match &options.cache {
        Some(folder) => CacheOptions::new(folder),
        None => CacheOptions { mode: Mode::Off, ..CacheOptions::new("") },
    }
}

impl TextFolder {
    /// How an engine on this folder shares its device: what the folder says.
    pub fn engine_options(&self) -> EngineOptions {
        let on_device = self.model.page_device().and_then(|device| device.free_bytes());
        let free_bytes = on_device.and_then(|bytes| usize::try_from(bytes).ok()).or_else(available_bytes);
        EngineOptions::from_config(self.model.config(), free_bytes)
    }

    /// Loads an adapter from a file, under a name.
    pub fn load_adapter(&self, name: &str, file: &Path) -> Result<Adapter, Error> {
        load_adapter(&self.adapters, name, file)
    }

    /// An engine on this folder, with text where the folder has a tokenizer.
    pub fn engine(&self, options: EngineOptions) -> Result<Engine, Error> {
        Ok(Engine::new(&self.model, self.tokenizer.as_ref(), options)?)
    }
}

/// Memory of the host that is free for pages, where the system says.
fn available_bytes() -> Option<usize> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: usize = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// The configuration of a folder, without opening its decoder.
pub(crate) fn read_config(folder: &Folder, options: &TextOptions) -> Result<GenerationConfig, Error> {
    let device_of = |name: &str| match resolve_device_with_notice(name) {
        Ok(resolved) => {
            let kind = resolved.name.kind;
            Ok(NamedDevice { kind: kind.name().to_string(), is_host: kind == DeviceKind::Cpu })
        }
        Err(error) => Err(format!("cannot be the device: {error}")),
    };
    Ok(config::open(folder, options.overlays.clone(), &device_of)?)
}

/// The device: the caller's, else the first that the folder names, else the CPU.
fn device_of(config: &GenerationConfig, options: &TextOptions) -> Result<(DeviceName, Option<String>), Error> {
    if let Some(device) = options.device {
        return Ok((device, None));
    }
    let Some(provider) = config.model.decoder.providers.first() else { return Ok((options.runner.device, None)) };
    let resolved = resolve_device_with_notice(&provider.name)?;
    let number = provider.device_id().unwrap_or(resolved.name.number);
    Ok((DeviceName { number, ..resolved.name }, resolved.notice))
}

fn open_tokenizer(
    folder: &Folder,
    config: &GenerationConfig,
    notices: &mut Vec<String>,
) -> Result<Option<Tokenizer>, Error> {
    let folder = match &config.model.tokenizer_dir {
        Some(name) => folder.inside(name)?,
        None => folder.clone(),
    };
    if !folder.has(TOKENIZER_FILE)? {
        return Ok(None);
    }
    let tokenizer = Tokenizer::open(&folder)?;
    if let Some(eos) = tokenizer.eos_token_id().filter(|eos| !config.model.eos_token_ids.contains(eos)) {
        notices.push(format!("the tokenizer's own end token ({eos}) is not among eos_token_id and does not end a row"));
    }
    Ok(Some(tokenizer))
}

/// All that a decoder is opened from, so that it can be opened again with other values for its parameters.
struct DecoderOpener {
    model: Model,
    config: GenerationConfig,
    runner: RunnerOptions,
    options: TextOptions,
    device: OpenDevice,
    cache: Arc<ProgramCache>,
}

impl DecoderOpener {
    /// Opens the decoder, which can be opened with other values afterwards.
    fn open(self, notices: &mut Vec<String>) -> Result<TextModel, Error> {
        let shared = SharedConstants::default();
        let model = TextModel::new(open_decoder(&self, &Parameters::new(), &shared, notices)?);
        let open_adapted = move |parameters: &Parameters| {
            check_parameters(&self.model, parameters)?;
            self.cache.trim();
            // What a person should know of the decoder was told when it was first opened.
            let parts = open_decoder(&self, parameters, &shared, &mut Vec::new()).map_err(|error| error.to_string())?;
            let cache = self.cache.clone();
            Ok(TextModelParts { on_close: OnClose::new(move || cache.trim()), ..parts })
        };
        Ok(model.with_open_adapted(Arc::new(open_adapted)))
    }
}

/// Opens a decoder with these values for some of its parameters.
fn open_decoder(
    opener: &DecoderOpener,
    parameters: &Parameters,
    shared: &SharedConstants,
    notices: &mut Vec<String>,
) -> Result<TextModelParts, Error> {
    let DecoderOpener { model, config, runner, options, device, cache } = opener;
    let is_cpu = runner.device.kind == DeviceKind::Cpu;
    let machine = DecoderMachine { widens_floats: is_cpu, keeps_caches: !is_cpu };
    let mut decoders = decoder_graphs(model, config, &runner.passes, &machine, parameters)?;
    if !model.replaceable_inputs()?.is_empty() {
        decoders.each_mut(|graph| match parameters.is_empty() {
            true => shared.keep(graph),
            false => shared.share(graph),
        });
    }
    let decoder = decoders.short;
    let chunk = if is_cpu { CHUNK_ON_CPU } else { CHUNK_ON_GPU };
    let mut ladders = Ladders::new(&config.tuning, config.model.context_length, chunk, options.rows_max);
    if is_cpu {
        ladders = ladders.with_long_chunk(&config.tuning, LONG_CHUNK_ON_CPU).with_close_sizes(&config.tuning);
    }
    if let Some(reason) = &decoder.refuses_filler {
        notices.push(format!("Programs have exact lengths and one row, since filler would change answers: {reason}"));
        ladders = ladders.without_filler();
    }
    if decoder.inputs.iter().any(|(role, _)| is_one_length_for_all_rows(*role)) {
        notices.push("Programs have one row, since the graph is told one length for all rows".to_string());
        ladders = ladders.with_single_rows();
    }
    let on_miss = if options.is_reference { OnMiss::Reference.into() } else { on_miss(config, options)? };
    let pads_up = on_miss.0.first() == Some(&OnMiss::PadUp) && !ladders.is_exact;
    let mut session = SessionOptions {
        exact_programs_max: ladders.program_count(),
        on_miss,
        background: !options.is_reference,
        startup: Startup::Lazy,
        measures: false,
        device_label: device.label.clone(),
        ..SessionOptions::default()
    };
    session.target_options.insert("disable".to_string(), runner.passes.disabled.join(","));
    let open = |graph: Graph, options: &SessionOptions| -> Result<Session, Error> {
        let interface = Interface::of(&graph, None).map_err(Error::from)?;
        let (target, device) = (device.target.clone(), device.device.clone());
        Ok(Session::open(interface, Arc::new(graph), options.clone(), target, device, cache.clone())?)
    };
    let open_with = |part: DecoderPart, options: &SessionOptions| -> Result<DecoderSession, Error> {
        let DecoderPart { graph, inputs, outputs } = part;
        Ok(DecoderSession { session: open(graph, options)?, inputs, outputs })
    };
    let open_part = |part: DecoderPart| open_with(part, &session);
    let open_both = |parts: Option<[DecoderPart; 2]>, options: &SessionOptions| match parts {
        Some([scored, headless]) => {
            let (scored, headless) = (open_with(scored, options)?, open_with(headless, options)?);
            Ok::<Option<ResidentDecoder>, Error>(Some(ResidentDecoder { scored, headless }))
        }
        None => Ok(None),
    };
    let open_resident = |parts: Option<[DecoderPart; 2]>| open_both(parts, &session);
    let DecoderSession { session: headless, inputs, outputs } = open_part(decoder.headless)?;
    let headless = Headless { session: headless, inputs, outputs };
    let resident = open_resident(decoder.resident)?;
    let long_pages = decoders.long.as_ref().and_then(|(_, long)| long.paged.as_ref());
    let host_pages = [decoder.paged.as_ref(), long_pages].into_iter().flatten().find_map(|paged| paged.as_ref().err());
    let host_pages = host_pages.cloned();
    if let Some(reason) = &host_pages {
        notices.push(format!("an engine has its keys and values on the host, since {reason}"));
    }
    // An engine says how many tokens a page has; one is the most Programs.
    let on_pages = SessionOptions { exact_programs_max: ladders.on_pages(1).program_count(), ..session.clone() };
    let open_paged = |parts: Option<Result<[DecoderPart; 2], String>>| match host_pages {
        Some(_) => Ok(None),
        None => open_both(parts.and_then(Result::ok), &on_pages),
    };
    let paged = open_paged(decoder.paged)?;
    let long = match decoders.long {
        None => None,
        Some((limit, DecoderGraph { graph, inputs, outputs, headless, resident, paged, .. })) => Some(LongDecoder {
            limit,
            scored: open_part(DecoderPart { graph, inputs, outputs })?,
            headless: open_part(headless)?,
            resident: open_resident(resident)?,
            paged: open_paged(paged)?,
        }),
    };
    let session = open(decoder.graph, &session)?;
    Ok(TextModelParts {
        pads_up,
        session,
        inputs: decoder.inputs,
        outputs: decoder.outputs,
        headless,
        resident,
        paged,
        host_pages,
        long,
        roles: decoder.roles,
        layers: decoder.layers,
        vocabulary: decoder.vocabulary,
        weight_bytes: decoder.weight_bytes,
        ladders,
        device: runner.device.to_string(),
        config: config.clone(),
        on_close: OnClose::default(),
    })
}

/// Whether an input tells one number that differs between rows; the total is that of the longest row by its meaning.
fn is_one_length_for_all_rows(role: InputRole) -> bool {
    match role {
        InputRole::Count(CountOf::Past | CountOf::New, CountForm::Scalar | CountForm::Single) => true,
        InputRole::Count(CountOf::Past | CountOf::New, CountForm::Rows) | InputRole::Count(CountOf::Total, _) => false,
        InputRole::Ids
        | InputRole::Positions
        | InputRole::Mask
        | InputRole::Lengths
        | InputRole::NewTokens
        | InputRole::LogitsIndex
        | InputRole::Pages
        | InputRole::Past(..) => false,
    }
}

/// What activations are multiplied as: in 8 bits where the caller or the folder asks for it.
fn activations(config: &GenerationConfig, runner: &RunnerOptions) -> Result<ActivationPrecision, Error> {
    match (runner.passes.numerics.activations, &config.tuning.activations) {
        (ActivationPrecision::F32, Some(text)) => {
            text.parse().map_err(|reason| Error::Request(format!("precast.json: activations: {reason}")))
        }
        (asked, _) => Ok(asked),
    }
}

/// What answers a step whose Program is not there; the caller's word, else the folder's, else waiting for it.
fn on_miss(config: &GenerationConfig, options: &TextOptions) -> Result<OnMissChain, Error> {
    match (&options.on_miss, &config.tuning.on_miss) {
        (Some(chain), _) => Ok(chain.clone()),
        (None, Some(text)) => text.parse().map_err(|reason| Error::Request(format!("precast.json: on_miss: {reason}"))),
        (None, None) => Ok(OnMiss::Wait.into()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::runner::Captures;
    use precast_generate::{Generator, GeneratorParams};

    /// What a folder of these options of a session and these settings of ours makes of the caller's options.
    fn captures(session_options: &str, tuning: &str, options: &TextOptions) -> Captures {
        let config = format!(
            r#"{{"model":{{"context_length":8,"eos_token_id":1,
                "decoder":{{"filename":"m.onnx","session_options":{session_options}}}}}}}"#
        );
        let source = |name: &str, text: &str| Source { name: name.to_string(), text: text.to_string() };
        let device_of = |name: &str| Ok(NamedDevice { kind: name.to_string(), is_host: false });
        let tuning = Some(source("precast.json", tuning));
        let config = config::parse(source("c", &config), Vec::new(), tuning, &device_of).unwrap();
        runner_options(&config, DeviceName::CPU, options).unwrap().captures
    }

    #[test]
    fn captures_follow_the_folder_unless_the_caller_has_turned_them_off() {
        let first = |option: &str| format!(r#"{{"provider_options":[{{"device":{{{option}}}}}]}}"#);
        let defaults = TextOptions::default();
        for name in ["enable_cuda_graph", "enable_graph_capture", "enableGraphCapture"] {
            assert!(!captures(&first(&format!(r#""{name}":"0""#)), "{}", &defaults).is_on);
            assert!(captures(&first(&format!(r#""{name}":"1""#)), "{}", &defaults).is_on);
        }
        assert!(captures(&first(""), "{}", &defaults).is_on);
        assert_eq!(captures("{}", r#"{"graph_budget_mb":3}"#, &defaults).max_bytes, 3 << 20);
        let runner = RunnerOptions { captures: Captures { is_on: false, ..Captures::default() }, ..Default::default() };
        let off = TextOptions { runner, ..TextOptions::default() };
        assert!(!captures(&first(r#""enable_cuda_graph":"1""#), "{}", &off).is_on);
    }

    /// A decoder of the tests of generation, and the cache that its constants are in.
    fn decoder(name: &str, change: impl Fn(&mut TextOptions)) -> (TextModel, Arc<ProgramCache>) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../generate/tests/data").join(name);
        let mut options = TextOptions::default();
        change(&mut options);
        let config = read_config(&Folder::open(&folder).unwrap(), &options).unwrap();
        let runner = runner_options(&config, DeviceName::CPU, &options).unwrap();
        let cache = Arc::new(ProgramCache::open(cache_options(&options)).unwrap());
        let (device, model) = (open_device(&runner, &cache).unwrap(), Model::open(&folder.join("model.onnx")).unwrap());
        let opener = DecoderOpener { model, config, runner, options, device, cache: cache.clone() };
        (opener.open(&mut Vec::new()).unwrap(), cache)
    }

    #[test]
    fn an_adapter_adds_its_own_constants_alone_and_unloading_lets_go_of_them() {
        let (model, cache) = decoder("llama_lora-fp32", |_| ());
        let run = |model: &TextModel| {
            let params = GeneratorParams::new(model.config().search.clone()).max_new_tokens(4);
            let mut generator = Generator::new(model, params).unwrap();
            generator.append(&[&[5, 60, 7], &[8, 93]]).unwrap();
            while !generator.is_done() {
                generator.next().unwrap();
            }
        };
        run(&model);
        let (own_count, own_bytes) = cache.store().resident();
        let programs = cache.resident_programs();
        let adapters = Adapters::new(&model);
        for name in ["first", "second"] {
            let file =
                format!("{}/../generate/tests/data/llama_lora-fp32/{name}.onnx_adapter", env!("CARGO_MANIFEST_DIR"));
            let adapter = load_adapter(&adapters, name, file.as_ref()).unwrap();
            run(&model.with_adapter(Some(&adapter)).unwrap());
            let (count, bytes) = cache.store().resident();
            assert_eq!(cache.resident_programs(), 2 * programs, "{name}");
            assert!(
                count - own_count <= adapter.parameters().len(),
                "{name}: {count} constants, {own_count} of them the model's"
            );
            // Packed, each of its matrices is filled up to whole columns of a kernel.
            let added = (bytes - own_bytes) as usize;
            assert!(
                added >= adapter.bytes() / 2 && added <= 8 * adapter.bytes(),
                "{name}: {added} bytes of {}",
                adapter.bytes()
            );
            assert!(added * 2 < own_bytes as usize, "{name}: {added} bytes beside {own_bytes}");
            drop(adapter);
            adapters.unload(name).unwrap();
            // A thread that compiled holds its Program until it ends, which may be a moment after the step: what it held then is
            // let go of with the next adapter that comes or goes.
            let end = Instant::now() + Duration::from_secs(20);
            while cache.resident_programs() > programs && Instant::now() < end {
                cache.trim();
            }
            assert_eq!(
                (cache.store().resident(), cache.resident_programs()),
                ((own_count, own_bytes), programs),
                "{name}"
            );
        }
    }
}
