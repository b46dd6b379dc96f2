//! The Graph of a decoder as generation runs it: caches with room left instead of a growing past, one row of scores a
//! sequence, and only the inputs that are read.

use std::collections::{BTreeMap, BTreeSet};

use precast_generate::adapter::Parameters;
use precast_generate::config::{DecoderConfig, GenerationConfig};
use precast_generate::kv_cache::{Half, LayerLayout};
use precast_generate::roles::{CacheNames, CountForm, GraphPort, RoleError, Roles, bind_roles};
use precast_generate::text_model::{CAPACITY, InputRole, LENGTH, OutputRole, ROWS, SCORED};
use precast_ir::graph::{GraphCopy, Provenance};
use precast_ir::op::{AppendToCache, ArgFn, ArgReduce, Concat, GatherElements, Reshape, Slice};
use precast_ir::{Graph, Op, ValueId};
use precast_onnx::ImportOptions;
use precast_passes::{
    CANONICAL, Grade, PassOptions, explain, gather_rows, pad_verdict, remove_dead, run_passes, widen_floats,
};
use precast_tensor::{DType, Dim, Symbol, Type};

use crate::clear_free_slots::clear_free_slots;
use crate::error::Error;
use crate::model::Model;
use crate::paged_graph::{PAGES_INPUT, with_pages};

/// The input that says how many tokens of each row are cached.
const LENGTHS_INPUT: &str = "precast.cached_lengths";
/// The input that says behind which tokens scores are wanted.
const INDEX_INPUT: &str = "precast.logits_index";
/// The input that says how many new tokens of each row count.
const NEW_TOKENS_INPUT: &str = "precast.new_tokens";
/// Element types of attention behind a cache that there are kernels for, so that each is one node: on machines that widen
/// floats those of f32.
const ATTENTION: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// The output that is the token of the largest score, and the one that is this score.
const BEST_OUTPUTS: [&str; 2] = ["precast.best", "precast.best_score"];

/// The Graphs of a decoder.
pub(crate) struct DecoderGraphs {
    /// That of rows as they begin.
    pub(crate) short: DecoderGraph,
    /// That of rows of more tokens than this, where the decoder computes those in another way.
    pub(crate) long: Option<(usize, DecoderGraph)>,
}

/// A decoder's Graph and what its inputs and outputs are.
pub(crate) struct DecoderGraph {
    pub(crate) graph: Graph,
    pub(crate) roles: Roles,
    pub(crate) inputs: Vec<(InputRole, DType)>,
    pub(crate) outputs: Vec<(OutputRole, DType)>,
    pub(crate) layers: Vec<LayerLayout>,
    pub(crate) vocabulary: usize,
    /// Bytes of constants that every step reads whole.
    pub(crate) weight_bytes: u64,
    /// Why filler would change answers, if it would.
    pub(crate) refuses_filler: Option<String>,
    /// The same decoder without its scores.
    pub(crate) headless: DecoderPart,
    /// The same decoder with and without its scores, for a device that keeps caches.
    pub(crate) resident: Option<[DecoderPart; 2]>,
    /// The same for a device that keeps the pages of an engine, or why there is none.
    pub(crate) paged: Option<Result<[DecoderPart; 2], String>>,
}

/// A Graph of a decoder or of a part of it, and what its inputs and outputs are.
pub(crate) struct DecoderPart {
    pub(crate) graph: Graph,
    pub(crate) inputs: Vec<(InputRole, DType)>,
    pub(crate) outputs: Vec<(OutputRole, DType)>,
}

/// What a target and its device can do for a decoder.
pub(crate) struct DecoderMachine {
    /// Whether 16-bit floats, those of caches too, are held in f32: the machine has no kernels for them.
    pub(crate) widens_floats: bool,
    /// Whether the device keeps caches.
    pub(crate) keeps_caches: bool,
}

impl DecoderGraphs {
    /// Every Graph, to be changed.
    pub(crate) fn each_mut(&mut self, mut change: impl FnMut(&mut Graph)) {
        for decoder in std::iter::once(&mut self.short).chain(self.long.as_mut().map(|(_, long)| long)) {
            let DecoderGraph { graph, headless, resident, paged, .. } = decoder;
            let paged = paged.iter_mut().flatten().flatten();
            let parts = std::iter::once(headless).chain(resident.iter_mut().flatten()).chain(paged);
            std::iter::once(graph).chain(parts.map(|part| &mut part.graph)).for_each(&mut change);
        }
    }
}

/// Makes the Graphs of a decoder, with these values for some of its parameters.
pub(crate) fn decoder_graphs(
    model: &Model,
    config: &GenerationConfig,
    passes: &PassOptions,
    machine: &DecoderMachine,
    parameters: &Parameters,
) -> Result<DecoderGraphs, Error> {
    let (roles, layers) = bind_decoder(model, config)?;
    let options = ImportOptions { freeze: parameters.clone(), ..import_options(&roles, &layers) };
    let make = |known| {
        let options = ImportOptions { known, ..options.clone() };
        decoder_graph(model, config, passes, machine, (&roles, layers.clone()), &options)
    };
    let switch = match &roles.attention_mask {
        Some(mask) => model.length_switch(mask)?,
        None => None,
    };
    let Some(switch) = switch else { return Ok(DecoderGraphs { short: make(BTreeMap::new())?, long: None }) };
    let long = match switch.limit < config.model.context_length {
        true => Some((switch.limit, make(switch.known(true))?)),
        false => None,
    };
    Ok(DecoderGraphs { short: make(switch.known(false))?, long })
}

/// Makes one Graph of a decoder.
fn decoder_graph(
    model: &Model,
    config: &GenerationConfig,
    passes: &PassOptions,
    machine: &DecoderMachine,
    (roles, mut layers): (&Roles, Vec<LayerLayout>),
    options: &ImportOptions,
) -> Result<DecoderGraph, Error> {
    let mut imported = model.graph(options)?.graph;
    if machine.widens_floats {
        imported = widen_floats(&imported)?;
        for layer in layers.iter_mut().filter(|layer| ATTENTION.contains(&layer.dtype)) {
            layer.dtype = DType::F32;
        }
    }
    let split = split_caches(&imported, roles)?;
    let split = clear_free_slots(&split, roles)?;
    let split = with_new_tokens_alone(&split, roles)?;
    let names = PortNames::of(roles);
    let split = names.without_others(&split)?;
    let vocabulary = vocabulary_of(&split, roles, config)?;
    let gathered = gather_rows(&split, &roles.logits, INDEX_INPUT, Dim::symbol(SCORED))?;
    let canonical = run_passes(&gathered, CANONICAL, passes)?;
    imported.release_pages();
    refuse_capacities(&canonical)?;
    let graph = without_unread_inputs(&canonical)?;
    let headless = names.part(without_outputs(&graph, &[&roles.logits])?)?;
    let (resident, paged) = match machine.keeps_caches {
        true => (Some(resident_parts(&canonical, roles)?), Some(paged_parts(&canonical, roles)?)),
        false => (None, None),
    };
    let (refuses_filler, weight_bytes) = (refuses_filler(&graph), weight_bytes(&graph));
    let DecoderPart { graph, inputs, outputs } = names.part(graph)?;
    Ok(DecoderGraph {
        roles: roles.clone(),
        inputs,
        outputs,
        layers,
        vocabulary,
        weight_bytes,
        refuses_filler,
        headless,
        resident,
        paged,
        graph,
    })
}

/// What the inputs and outputs of a decoder's file are, and what its layers cache.
pub(crate) fn bind_decoder(model: &Model, config: &GenerationConfig) -> Result<(Roles, Vec<LayerLayout>), Error> {
    let decoder = &config.model.decoder;
    let declared = model.inputs()?;
    let ports: Vec<GraphPort> = declared
        .iter()
        .map(|input| GraphPort {
            name: input.name.clone(),
            dtype: input.dtype,
            dims: input.dims.clone().unwrap_or_default(),
        })
        .collect();
    let roles = bind_roles(decoder, &ports, &model.outputs())?;
    let layers = layer_layouts(model, decoder, &roles, &ports)?;
    Ok((roles, layers))
}

/// Beside attention that is told how much of a cache is filled, the size of the cache means nothing to other nodes: where
/// one computes with it, it was meant to be the length of the rows.
fn refuse_capacities(graph: &Graph) -> Result<(), Error> {
    if !graph.nodes().iter().any(|node| matches!(node.op, Op::CachedAttention(_))) {
        return Ok(());
    }
    let mut sizes: Vec<ValueId> = Vec::new();
    let mut reader = None;
    for node in graph.nodes() {
        let is_size = match &node.op {
            Op::DimValue(value) => value.dim.symbols().iter().any(|symbol| symbol.as_str() == CAPACITY),
            _ => node.inputs.iter().any(|input| sizes.contains(input)),
        };
        if !is_size {
            continue;
        }
        reader = Some(node);
        // Named is the node where the size meets something else that a run gives.
        let is_other = |&input: &ValueId| !sizes.contains(&input) && graph.constant(input).is_none();
        if node.inputs.iter().any(is_other) {
            break;
        }
        sizes.extend(&node.outputs);
    }
    let Some(reader) = reader else { return Ok(()) };
    Err(misfit(format!(
        "'{}' computes with the length of the attention mask, which is that of the cache here; only comparisons of it with \
         a number are covered",
        reader.provenance
    )))
}

/// A decoder with and without its scores for a device that keeps caches: new tokens are put into them by the last node, and
/// the token of the largest score is told.
fn resident_parts(graph: &Graph, roles: &Roles) -> Result<[DecoderPart; 2], Error> {
    let whole = without_unread_inputs(&with_caches_appended(&with_best_scores(graph, &roles.logits)?, roles)?)?;
    let names = PortNames::of_resident(roles);
    let unscored = without_outputs(&whole, &[&roles.logits, BEST_OUTPUTS[0], BEST_OUTPUTS[1]])?;
    Ok([names.part(whole)?, names.part(unscored)?])
}

/// The same for a device that keeps the pages of an engine, or why there is none.
fn paged_parts(graph: &Graph, roles: &Roles) -> Result<Result<[DecoderPart; 2], String>, Error> {
    let names: BTreeSet<String> = roles.past.iter().flat_map(half_names).collect();
    Ok(match with_pages(&without_unread_inputs(graph)?, &|name| names.contains(name))? {
        Ok(paged) => Ok(resident_parts(&paged, roles)?),
        Err(reason) => Err(reason),
    })
}

/// The Graph with the token of the largest score, and that score, as further outputs.
fn with_best_scores(graph: &Graph, logits: &str) -> Result<Graph, Error> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        copy.node(node)?;
    }
    let outputs: Vec<(String, ValueId)> =
        graph.outputs().iter().map(|output| (output.name.clone(), copy.get(output.value))).collect();
    let mut scored = copy.new;
    let scores = outputs.iter().find(|(name, _)| name == logits).map(|(_, value)| *value);
    let scores = scores.ok_or_else(|| misfit(format!("there is no output '{logits}'")))?;
    let axis = scored.ty(scores).dims.len().saturating_sub(1);
    let largest = ArgReduce { func: ArgFn::Max, axis, keep_dims: true, last: false };
    let best = scored.add_node(Op::ArgReduce(largest), &[scores], &Provenance::default())?[0];
    let gather = Op::GatherElements(GatherElements { axis });
    let best_score = scored.add_node(gather, &[scores, best], &Provenance::default())?[0];
    for (name, value) in outputs {
        scored.add_output(name, value);
    }
    scored.add_output(BEST_OUTPUTS[0], best);
    scored.add_output(BEST_OUTPUTS[1], best_score);
    Ok(scored)
}

/// The Graph with whole caches, or all pages, in place of the keys and values of new tokens.
fn with_caches_appended(graph: &Graph, roles: &Roles) -> Result<Graph, Error> {
    let past_of: BTreeMap<String, String> = roles
        .present
        .iter()
        .zip(&roles.past)
        .flat_map(|(present, past)| half_names(present).into_iter().zip(half_names(past)))
        .collect();
    let mut copy = GraphCopy::with_inputs(graph);
    let find = |name: &str| graph.inputs().iter().copied().find(|&input| graph.input_name(input) == name);
    let counts = Type::new(DType::I32, vec![Dim::symbol(ROWS)]);
    let lengths = match find(LENGTHS_INPUT) {
        Some(lengths) => copy.get(lengths),
        None => copy.new.add_input(LENGTHS_INPUT, counts.clone()),
    };
    let mut operands = vec![lengths, copy.new.add_input(NEW_TOKENS_INPUT, counts)];
    let pages = find(PAGES_INPUT);
    operands.extend(pages.map(|pages| copy.get(pages)));
    for node in graph.nodes() {
        copy.node(node)?;
    }
    for output in graph.outputs() {
        let Some(past) = past_of.get(&output.name) else { continue };
        let past = find(past).ok_or_else(|| misfit(format!("no node reads the cache '{past}'")))?;
        operands.extend([copy.get(past), copy.get(output.value)]);
    }
    let values: Vec<ValueId> = graph.outputs().iter().map(|output| copy.get(output.value)).collect();
    let mut appended = copy.new;
    let append = Op::AppendToCache(AppendToCache { paged: pages.is_some() });
    let mut caches = appended.add_node(append, &operands, &Provenance::default())?.into_iter();
    for (output, value) in graph.outputs().iter().zip(values) {
        let cache = past_of.contains_key(&output.name).then(|| caches.next()).flatten();
        appended.add_output(output.name.clone(), cache.unwrap_or(value));
    }
    Ok(appended)
}

/// The Graph without some outputs and what only those need.
fn without_outputs(graph: &Graph, names: &[&str]) -> Result<Graph, Error> {
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        copy.node(node)?;
    }
    let kept: Vec<(String, ValueId)> = graph
        .outputs()
        .iter()
        .filter(|output| !names.contains(&output.name.as_str()))
        .map(|output| (output.name.clone(), copy.get(output.value)))
        .collect();
    let mut rest = copy.new;
    for (name, value) in kept {
        rest.add_output(name, value);
    }
    without_unread_inputs(&remove_dead(&rest)?)
}

/// Nodes that mix rows of a batch, such as one scale for a whole tensor, mix tokens of a row alike. Filler repeats real rows.
fn refuses_filler(graph: &Graph) -> Option<String> {
    let verdict = pad_verdict(graph, &Symbol::from(ROWS));
    match verdict.grade {
        Grade::Independent | Grade::ReplicateOnly => None,
        Grade::Refused { .. } => Some(explain(graph, &verdict)),
    }
}

/// Bytes of constants that nodes read whole. Of a table that is looked up, a step reads a few rows.
fn weight_bytes(graph: &Graph) -> u64 {
    let mut whole = BTreeSet::new();
    for node in graph.nodes() {
        let is_table = |position: usize| position == 0 && matches!(node.op, Op::Gather(_));
        let read = node.inputs.iter().enumerate().filter(|(position, _)| !is_table(*position));
        whole.extend(read.map(|(_, input)| input.0));
    }
    let bytes = |value: u32| graph.constant(ValueId(value)).map_or(0, |constant| constant.bytes().len() as u64);
    whole.into_iter().map(bytes).sum()
}

pub(crate) fn misfit(reason: String) -> Error {
    Error::Roles(RoleError(vec![reason]))
}

/// Names of a layer's keys and values in the Graph, where they are always apart.
pub(crate) fn half_names(names: &CacheNames) -> [String; 2] {
    match names {
        CacheNames::Separate { key, value } => [key.clone(), value.clone()],
        CacheNames::Combined(name) => [format!("{name}.key"), format!("{name}.value")],
    }
}

/// Roles by the names of the Graph's inputs and outputs.
struct PortNames {
    inputs: BTreeMap<String, InputRole>,
    outputs: BTreeMap<String, OutputRole>,
}

impl PortNames {
    fn of(roles: &Roles) -> PortNames {
        let mut inputs = BTreeMap::from([
            (roles.input_ids.clone(), InputRole::Ids),
            (LENGTHS_INPUT.to_string(), InputRole::Lengths),
            (INDEX_INPUT.to_string(), InputRole::LogitsIndex),
        ]);
        inputs.extend(roles.position_ids.iter().map(|name| (name.clone(), InputRole::Positions)));
        inputs.extend(roles.attention_mask.iter().map(|name| (name.clone(), InputRole::Mask)));
        inputs.extend(roles.counts.iter().map(|count| (count.name.clone(), InputRole::Count(count.of, count.form))));
        let mut outputs = BTreeMap::from([(roles.logits.clone(), OutputRole::Logits)]);
        let halves = [Half::Keys, Half::Values];
        for (layer, (past, present)) in roles.past.iter().zip(&roles.present).enumerate() {
            inputs.extend(half_names(past).into_iter().zip(halves.map(|half| InputRole::Past(layer, half))));
            outputs.extend(half_names(present).into_iter().zip(halves.map(|half| OutputRole::Present(layer, half))));
        }
        PortNames { inputs, outputs }
    }

    /// Names and roles where the device keeps caches.
    fn of_resident(roles: &Roles) -> PortNames {
        let PortNames { mut inputs, mut outputs } = PortNames::of(roles);
        inputs.insert(NEW_TOKENS_INPUT.to_string(), InputRole::NewTokens);
        inputs.insert(PAGES_INPUT.to_string(), InputRole::Pages);
        for role in outputs.values_mut() {
            if let OutputRole::Present(layer, half) = *role {
                *role = OutputRole::Cache(layer, half);
            }
        }
        let best = BEST_OUTPUTS.map(str::to_string).into_iter().zip([OutputRole::Best, OutputRole::BestScore]);
        outputs.extend(best);
        PortNames { inputs, outputs }
    }

    /// The Graph without outputs that generation has no use for, such as hidden states.
    fn without_others(&self, graph: &Graph) -> Result<Graph, Error> {
        let names = graph.outputs().iter().map(|output| output.name.as_str());
        let others: Vec<&str> = names.filter(|name| !self.outputs.contains_key(*name)).collect();
        if others.is_empty() { Ok(graph.clone()) } else { without_outputs(graph, &others) }
    }

    /// A Graph and what its inputs and outputs are.
    fn part(&self, graph: Graph) -> Result<DecoderPart, Error> {
        Ok(DecoderPart { inputs: self.input_roles(&graph)?, outputs: self.output_roles(&graph), graph })
    }

    /// What the inputs of a Graph are for.
    fn input_roles(&self, graph: &Graph) -> Result<Vec<(InputRole, DType)>, Error> {
        let role = |&input: &ValueId| {
            let name = graph.input_name(input);
            let role = self.inputs.get(name).map(|&role| (role, graph.ty(input).dtype));
            role.ok_or_else(|| misfit(format!("nodes read the input '{name}', which has no meaning beside a cache")))
        };
        graph.inputs().iter().map(role).collect()
    }

    /// What the outputs of a Graph are.
    fn output_roles(&self, graph: &Graph) -> Vec<(OutputRole, DType)> {
        let role = |output: &precast_ir::graph::Output| {
            self.outputs.get(output.name.as_str()).map(|&role| (role, graph.ty(output.value).dtype))
        };
        graph.outputs().iter().filter_map(role).collect()
    }
}

/// What each layer caches: sizes from the graph where it declares them, else from the configuration. Everything that the
/// two contradict one another in is said.
fn layer_layouts(
    model: &Model,
    decoder: &DecoderConfig,
    roles: &Roles,
    ports: &[GraphPort],
) -> Result<Vec<LayerLayout>, Error> {
    let (windows, heads) = (model.attention_windows(), model.attention_heads());
    let port = |name: &str| ports.iter().find(|port| port.name == name);
    let mut faults = Vec::new();
    let mut layers = Vec::with_capacity(roles.past.len());
    for (layer, past) in roles.past.iter().enumerate() {
        let names = past.names();
        let mut size = |name: &str, of_role: Option<usize>, position: usize, what: &str| -> usize {
            let found = port(name);
            let rank = found.map_or(0, |port| port.dims.len());
            let declared = found.and_then(|port| port.dims.get(rank.checked_sub(position)?)?.as_usize());
            match (declared, of_role) {
                (Some(declared), Some(configured)) if declared != configured => faults
                    .push(format!("input '{name}' has a {what} of {declared}; the configuration says {configured}")),
                (None, None) => faults.push(format!("neither input '{name}' nor the configuration gives a {what}")),
                (Some(_), _) | (None, Some(_)) => {}
            }
            declared.or(of_role).unwrap_or_default()
        };
        let (key, value) = (names[0], names[names.len() - 1]);
        let window = windows.get(key).copied();
        layers.push(LayerLayout {
            heads: size(key, decoder.num_key_value_heads, 3, "number of heads"),
            key_size: size(key, decoder.head_size, 1, "head size"),
            value_size: size(value, decoder.head_size, 1, "head size"),
            dtype: port(key).map_or(DType::F32, |port| port.dtype),
            window,
            slack: decoder.sliding_window.as_ref().map_or(0, |window| window.cache_slack),
        });
        faults.extend(window_fault(decoder, layer, window));
        if let (Some(found), Some(configured)) = (heads.get(key), decoder.num_attention_heads)
            && *found != configured
        {
            faults.push(format!("layer {layer} has {found} heads of queries; num_attention_heads is {configured}"));
        }
    }
    faults.extend(layers_beyond(decoder, roles.past.len()));
    faults.extend(width_fault(model, decoder));
    if faults.is_empty() { Ok(layers) } else { Err(Error::Roles(RoleError(faults))) }
}

/// What is wrong where the window of the configuration is not that of a layer's node.
fn window_fault(decoder: &DecoderConfig, layer: usize, found: Option<usize>) -> Option<String> {
    let window = decoder.sliding_window.as_ref()?;
    let is_named = window.layers.as_ref().is_none_or(|layers| layers.contains(&layer));
    match (is_named, found) {
        (true, found) if found != Some(window.window_size) => {
            let found = found.map_or("none".to_string(), |found| found.to_string());
            let size = window.window_size;
            Some(format!(
                "sliding_window says that layer {layer} has a window of {size}; its node of attention has {found}"
            ))
        }
        (false, Some(found)) => Some(format!(
            "sliding_window.layers does not name layer {layer}, whose node of attention has a window of {found}"
        )),
        (true, _) | (false, None) => None,
    }
}

/// What is wrong where a window is given to layers that there are not.
fn layers_beyond(decoder: &DecoderConfig, count: usize) -> Option<String> {
    let named = decoder.sliding_window.as_ref()?.layers.as_ref()?;
    let beyond: Vec<String> = named.iter().filter(|&&layer| layer >= count).map(ToString::to_string).collect();
    let beyond = (!beyond.is_empty()).then(|| beyond.join(", "))?;
    Some(format!("sliding_window.layers names {beyond}; the graph has layers 0 to {}", count.saturating_sub(1)))
}

/// What is wrong where no norm of the graph is as wide as the model is said to be.
fn width_fault(model: &Model, decoder: &DecoderConfig) -> Option<String> {
    let (configured, widths) = (decoder.hidden_size?, model.norm_widths());
    if widths.is_empty() || widths.contains(&configured) {
        return None;
    }
    let widths: Vec<String> = widths.iter().map(ToString::to_string).collect();
    Some(format!("hidden_size is {configured}; the graph's norms are {} wide", widths.join(" and ")))
}

fn import_options(roles: &Roles, layers: &[LayerLayout]) -> ImportOptions {
    let (rows, length) = (Dim::symbol(ROWS), Dim::symbol(LENGTH));
    let mut options = ImportOptions { keeps_attention: ATTENTION.to_vec(), ..ImportOptions::default() };
    for name in std::iter::once(&roles.input_ids).chain(&roles.position_ids) {
        options.shapes.insert(name.clone(), vec![rows.clone(), length.clone()]);
    }
    if let Some(name) = &roles.attention_mask {
        let total = Dim::symbol(CAPACITY) + &length;
        options.shapes.insert(name.clone(), vec![rows.clone(), total]);
    }
    for count in &roles.counts {
        let dims = match count.form {
            CountForm::Scalar => Vec::new(),
            CountForm::Single => vec![Dim::ONE],
            CountForm::Rows => vec![rows.clone()],
        };
        options.shapes.insert(count.name.clone(), dims);
    }
    for (past, layout) in roles.past.iter().zip(layers) {
        let capacity = match layout.window {
            Some(window) => Dim::symbol(format!("{CAPACITY}.{window}").as_str()),
            None => Dim::symbol(CAPACITY),
        };
        let dims = |size: usize| vec![rows.clone(), Dim::from(layout.heads), capacity.clone(), Dim::from(size)];
        match past {
            CacheNames::Separate { key, value } => {
                options.shapes.insert(key.clone(), dims(layout.key_size));
                options.shapes.insert(value.clone(), dims(layout.value_size));
            }
            CacheNames::Combined(name) => {
                let combined = std::iter::once(Dim::from(2usize)).chain(dims(layout.key_size)).collect();
                options.shapes.insert(name.clone(), combined);
            }
        }
    }
    options.cache_lengths = Some((LENGTHS_INPUT.to_string(), Type::new(DType::I32, vec![rows])));
    options
}

/// Keys and values that share a tensor become inputs and outputs of their own.
fn split_caches(graph: &Graph, roles: &Roles) -> Result<Graph, Error> {
    let combined = |names: &CacheNames| match names {
        CacheNames::Combined(name) => Some((name.clone(), half_names(names))),
        CacheNames::Separate { .. } => None,
    };
    let past: BTreeMap<String, [String; 2]> = roles.past.iter().filter_map(combined).collect();
    let present: BTreeMap<String, [String; 2]> = roles.present.iter().filter_map(combined).collect();
    let none = Provenance::default();
    let mut copy = GraphCopy::new(graph);
    for &input in graph.inputs() {
        let ty = graph.ty(input).clone();
        let Some(names) = past.get(graph.input_name(input)) else {
            copy.input(input, ty);
            continue;
        };
        let mut halves = Vec::new();
        for name in names {
            let half = copy.new.add_input(name, Type::new(ty.dtype, ty.dims[1..].to_vec()));
            let shape = std::iter::once(Dim::ONE).chain(ty.dims[1..].iter().cloned()).collect();
            halves.extend(copy.new.add_node(Op::Reshape(Reshape { shape }), &[half], &none)?);
        }
        let both = copy.new.add_node(Op::Concat(Concat { axis: 0 }), &halves, &none)?;
        copy.set(input, both[0]);
    }
    for node in graph.nodes() {
        copy.node(node)?;
    }
    let mut outputs: Vec<(String, ValueId)> = Vec::new();
    for output in graph.outputs() {
        let value = copy.get(output.value);
        let Some(names) = present.get(&output.name) else {
            outputs.push((output.name.clone(), value));
            continue;
        };
        let dims = graph.ty(output.value).dims.clone();
        for (half, name) in names.iter().enumerate() {
            let mut start = vec![Dim::ZERO; dims.len()];
            start[0] = Dim::from(half);
            let size: Vec<Dim> = std::iter::once(Dim::ONE).chain(dims[1..].iter().cloned()).collect();
            let slice = Op::Slice(Slice { start, step: vec![1; dims.len()], size });
            let part = copy.new.add_node(slice, &[value], &none)?[0];
            let shape = dims[1..].to_vec();
            outputs.push((name.clone(), copy.new.add_node(Op::Reshape(Reshape { shape }), &[part], &none)?[0]));
        }
    }
    let mut split = copy.new;
    for (name, value) in outputs {
        split.add_output(name, value);
    }
    Ok(split)
}

/// The Graph with the keys and values of new tokens alone as its present ones. Nodes of attention that know caches give them;
/// others give the past with the new ones behind it, of which the mask hides the slots that are free.
fn with_new_tokens_alone(graph: &Graph, roles: &Roles) -> Result<Graph, Error> {
    let (length, capacity) = (Dim::symbol(LENGTH), Dim::symbol(CAPACITY));
    let names: Vec<String> = roles.present.iter().flat_map(half_names).collect();
    let mut copy = GraphCopy::with_inputs(graph);
    for node in graph.nodes() {
        copy.node(node)?;
    }
    let mut outputs: Vec<(String, ValueId)> = Vec::new();
    for output in graph.outputs() {
        let (mut value, dims) = (copy.get(output.value), graph.ty(output.value).dims.clone());
        if names.contains(&output.name) {
            value = match &dims[..] {
                [_, _, found, _] if *found == length => value,
                [_, _, found, _] if *found == &capacity + &length && is_masked(roles) => {
                    let mut start = vec![Dim::ZERO; dims.len()];
                    start[2] = capacity.clone();
                    let mut size = dims.clone();
                    size[2] = length.clone();
                    let slice = Op::Slice(Slice { start, step: vec![1; dims.len()], size });
                    copy.new.add_node(slice, &[value], &Provenance::default())?[0]
                }
                _ => {
                    return Err(misfit(format!(
                        "output '{}' is neither written by GroupQueryAttention or Attention (unidirectional), nor are \
                         there an attention_mask and position_ids to hide free slots of a cache with",
                        output.name
                    )));
                }
            };
        }
        outputs.push((output.name.clone(), value));
    }
    let mut alone = copy.new;
    for (name, value) in outputs {
        alone.add_output(name, value);
    }
    Ok(alone)
}

/// Whether the graph is told which slots are tokens and where tokens stand, so that neither follows from sizes.
pub(crate) fn is_masked(roles: &Roles) -> bool {
    roles.attention_mask.is_some() && roles.position_ids.is_some()
}

fn vocabulary_of(graph: &Graph, roles: &Roles, config: &GenerationConfig) -> Result<usize, Error> {
    let logits = graph.outputs().iter().find(|output| output.name == roles.logits);
    let last = logits.and_then(|output| graph.ty(output.value).dims.last()?.as_usize());
    match (last, config.model.vocab_size) {
        (None, _) => Err(misfit(format!("the last size of '{}' is no number", roles.logits))),
        (Some(found), Some(configured)) if found != configured => {
            Err(misfit(format!("'{}' has {found} scores; vocab_size is {configured}", roles.logits)))
        }
        (Some(found), _) => Ok(found),
    }
}

/// The Graph without inputs that nothing reads, such as a mask whose meaning the lengths of caches have.
fn without_unread_inputs(graph: &Graph) -> Result<Graph, Error> {
    let uses = graph.use_counts();
    let mut copy = GraphCopy::new(graph);
    for &input in graph.inputs() {
        if uses[input.0 as usize] > 0 {
            copy.input(input, graph.ty(input).clone());
        }
    }
    for node in graph.nodes() {
        copy.node(node)?;
    }
    Ok(copy.finish())
}
