//! Which input and output of a decoder's graph has which role. Names come from the configuration, else from convention;
//! sizes and element types come from the graph.

use precast_tensor::{DType, Dim};

use crate::config::{DecoderConfig, RoleNames};

/// An input or output of the graph.
#[derive(Clone, Debug, PartialEq)]
pub struct GraphPort {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: DType,
    /// Its sizes, where they are declared.
    pub dims: Vec<Dim>,
}

/// Names of a layer's keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheNames {
    /// A tensor each.
    Separate {
        /// Keys [rows, heads, length, size].
        key: String,
        /// Values [rows, heads, length, size].
        value: String,
    },
    /// One tensor [2, rows, heads, length, size].
    Combined(String),
}

impl CacheNames {
    /// The names.
    pub fn names(&self) -> Vec<&str> {
        match self {
            CacheNames::Separate { key, value } => vec![key, value],
            CacheNames::Combined(name) => vec![name],
        }
    }
}

/// Which tokens an input counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountOf {
    /// Those that are cached.
    Past,
    /// Those that are new.
    New,
    /// Both; of all rows together, those of the longest.
    Total,
}

/// How many numbers an input that counts tokens has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountForm {
    /// One, without a dim.
    Scalar,
    /// One, in a dim of its own.
    Single,
    /// One for each row.
    Rows,
}

/// An input that counts tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountInput {
    /// Its name.
    pub name: String,
    /// What it counts.
    pub of: CountOf,
    /// How many numbers it has.
    pub form: CountForm,
}

/// The roles of a decoder's inputs and outputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Roles {
    /// Tokens [rows, length].
    pub input_ids: String,
    /// Filled slots [rows, total].
    pub attention_mask: Option<String>,
    /// Positions [rows, length].
    pub position_ids: Option<String>,
    /// Numbers of tokens, which some graphs are told.
    pub counts: Vec<CountInput>,
    /// Cached keys and values, a layer.
    pub past: Vec<CacheNames>,
    /// Scores.
    pub logits: String,
    /// Keys and values, a layer.
    pub present: Vec<CacheNames>,
}

impl Roles {
    /// Every role that is bound and the name that it is bound to; layers by their first one, with how many there are.
    pub fn named(&self) -> Vec<(&'static str, String)> {
        let layers = |all: &[CacheNames]| match all {
            [] => "none".to_string(),
            [only] => only.names().join(", "),
            [first, ..] => format!("{} and {} more layers", first.names().join(", "), all.len() - 1),
        };
        let mut named = vec![("input_ids", self.input_ids.clone())];
        named.extend(self.attention_mask.iter().map(|name| ("attention_mask", name.clone())));
        named.extend(self.position_ids.iter().map(|name| ("position_ids", name.clone())));
        named.extend(self.counts.iter().map(|count| (count.of.name(), count.name.clone())));
        named.push(("past", layers(&self.past)));
        named.push(("logits", self.logits.clone()));
        named.push(("present", layers(&self.present)));
        named
    }
}

impl CountOf {
    /// What reports call it.
    pub fn name(self) -> &'static str {
        match self {
            CountOf::Past => "past length",
            CountOf::New => "current length",
            CountOf::Total => "total length",
        }
    }
}

/// Why the graph does not fit the configuration: everything that does not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the decoder's graph does not fit its configuration: {}", .0.join("; "))]
pub struct RoleError(pub Vec<String>);

/// Binds the inputs and outputs of a graph to roles.
pub fn bind_roles(config: &DecoderConfig, inputs: &[GraphPort], outputs: &[String]) -> Result<Roles, RoleError> {
    let names = &config.names;
    let mut faults = Vec::new();
    let has_input = |name: &str| inputs.iter().any(|port| port.name == name);
    let has_output = |name: &str| outputs.iter().any(|output| output == name);
    let mut one = |role: &str, configured: &Option<String>, default: &str, has: &dyn Fn(&str) -> bool| {
        let name = configured.as_deref().unwrap_or(default);
        if has(name) {
            return Some(name.to_string());
        }
        if configured.is_some() {
            faults.push(format!("{role} is mapped to '{name}', which the graph does not have"));
        }
        None
    };
    let input_ids = one("input_ids", &names.input_ids, "input_ids", &has_input);
    let attention_mask = one("attention_mask", &names.attention_mask, "attention_mask", &has_input);
    let position_ids = one("position_ids", &names.position_ids, "position_ids", &has_input);
    let logits = one("logits", &names.logits, "logits", &has_output);
    let counted: Vec<(String, CountOf)> = [
        ("past_sequence_length", &names.past_sequence_length, CountOf::Past),
        ("past_key_values_length", &names.past_key_values_length, CountOf::Past),
        ("current_sequence_length", &names.current_sequence_length, CountOf::New),
        ("total_sequence_length", &names.total_sequence_length, CountOf::Total),
    ]
    .into_iter()
    .filter_map(|(role, configured, of)| Some((one(role, configured, role, &has_input)?, of)))
    .collect();
    let counts = bind_counts(counted, inputs, &mut faults);
    let layers = layer_count(config, &has_input);
    let past = bind_layers(past_patterns(names), layers, &has_input, &mut faults);
    let present = bind_layers(present_patterns(names), layers, &has_output, &mut faults);
    if layers == 0 {
        faults.push("there are no inputs for cached keys and values".to_string());
    }
    if input_ids.is_none() && names.input_ids.is_none() {
        faults.push("there is no input 'input_ids'".to_string());
    }
    if logits.is_none() && names.logits.is_none() {
        faults.push("there is no output 'logits'".to_string());
    }
    let known: Vec<&str> = [&input_ids, &attention_mask, &position_ids]
        .into_iter()
        .flatten()
        .map(String::as_str)
        .chain(counts.iter().map(|count| count.name.as_str()))
        .chain(past.iter().flat_map(CacheNames::names))
        .collect();
    let unbound: Vec<&str> =
        inputs.iter().map(|port| port.name.as_str()).filter(|name| !known.contains(name)).collect();
    if !unbound.is_empty() {
        faults.push(format!("no role covers the inputs {}", unbound.join(", ")));
    }
    match (input_ids, logits, faults.is_empty()) {
        (Some(input_ids), Some(logits), true) => {
            Ok(Roles { input_ids, attention_mask, position_ids, counts, past, logits, present })
        }
        _ => Err(RoleError(faults)),
    }
}

/// Inputs that count tokens hold one integer, or one for each row.
fn bind_counts(counted: Vec<(String, CountOf)>, inputs: &[GraphPort], faults: &mut Vec<String>) -> Vec<CountInput> {
    let mut counts = Vec::new();
    for (name, of) in counted {
        let Some(port) = inputs.iter().find(|port| port.name == name) else { continue };
        let form = match &port.dims[..] {
            [] => CountForm::Scalar,
            [dim] if dim.as_usize() == Some(1) => CountForm::Single,
            [dim] if dim.as_usize().is_none() => CountForm::Rows,
            dims => {
                let dims: Vec<String> = dims.iter().map(Dim::to_string).collect();
                faults.push(format!(
                    "input '{name}' counts tokens in [{}]; one number or one for each row was expected",
                    dims.join(", ")
                ));
                CountForm::Scalar
            }
        };
        if !matches!(port.dtype, DType::I32 | DType::I64) {
            faults.push(format!("input '{name}' counts tokens in {}; i32 or i64 was expected", port.dtype.name()));
        }
        counts.push(CountInput { name, of, form });
    }
    counts
}

/// How names of layers are written: keys and values apart, or together.
enum Patterns<'c> {
    Separate(&'c str, &'c str),
    Combined(&'c str),
}

fn past_patterns(names: &RoleNames) -> Patterns<'_> {
    match &names.past_names {
        Some(pattern) => Patterns::Combined(pattern),
        None => Patterns::Separate(
            names.past_key_names.as_deref().unwrap_or("past_key_values.%d.key"),
            names.past_value_names.as_deref().unwrap_or("past_key_values.%d.value"),
        ),
    }
}

fn present_patterns(names: &RoleNames) -> Patterns<'_> {
    match &names.present_names {
        Some(pattern) => Patterns::Combined(pattern),
        None => Patterns::Separate(
            names.present_key_names.as_deref().unwrap_or("present.%d.key"),
            names.present_value_names.as_deref().unwrap_or("present.%d.value"),
        ),
    }
}

/// Layers by the configuration, else as many as there are inputs for.
fn layer_count(config: &DecoderConfig, has_input: &dyn Fn(&str) -> bool) -> usize {
    let pattern = match past_patterns(&config.names) {
        Patterns::Combined(pattern) | Patterns::Separate(pattern, _) => pattern,
    };
    let counted = (0..).take_while(|layer| has_input(&of_layer(pattern, *layer))).count();
    config.num_hidden_layers.unwrap_or(counted)
}

fn of_layer(pattern: &str, layer: usize) -> String {
    pattern.replace("%d", &layer.to_string())
}

fn bind_layers(
    patterns: Patterns<'_>,
    layers: usize,
    has: &dyn Fn(&str) -> bool,
    faults: &mut Vec<String>,
) -> Vec<CacheNames> {
    let of = |layer: usize| match patterns {
        Patterns::Combined(pattern) => CacheNames::Combined(of_layer(pattern, layer)),
        Patterns::Separate(key, value) => {
            CacheNames::Separate { key: of_layer(key, layer), value: of_layer(value, layer) }
        }
    };
    let bound: Vec<CacheNames> = (0..layers).map(of).collect();
    let missing: Vec<&str> = bound.iter().flat_map(CacheNames::names).filter(|name| !has(name)).collect();
    if !missing.is_empty() {
        faults.push(format!("the graph does not have {}", missing.join(", ")));
    }
    bound
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn ports(names: &[&str]) -> Vec<GraphPort> {
        names.iter().map(|name| GraphPort { name: name.to_string(), dtype: DType::I64, dims: Vec::new() }).collect()
    }

    fn outputs(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn default_names_and_layers_are_found() {
        let inputs = ports(&["input_ids", "past_key_values.0.key", "past_key_values.0.value"]);
        let roles =
            bind_roles(&DecoderConfig::default(), &inputs, &outputs(&["logits", "present.0.key", "present.0.value"]))
                .unwrap();
        assert_eq!((roles.past.len(), roles.attention_mask, roles.position_ids), (1, None, None));
    }

    #[test]
    fn inputs_that_count_tokens_are_bound_by_their_dims() {
        let mut inputs = ports(&["input_ids", "past_key_values.0.key", "past_key_values.0.value"]);
        let count = |name: &str, dtype, dims: Vec<Dim>| GraphPort { name: name.to_string(), dtype, dims };
        inputs.extend([
            count("past_sequence_length", DType::I32, Vec::new()),
            count("seen", DType::I64, vec![Dim::symbol("rows")]),
            count("total_sequence_length", DType::I32, vec![Dim::from(1usize)]),
        ]);
        let names = RoleNames { past_key_values_length: Some("seen".into()), ..RoleNames::default() };
        let config = DecoderConfig { names, ..DecoderConfig::default() };
        let out = outputs(&["logits", "present.0.key", "present.0.value"]);
        let counts = bind_roles(&config, &inputs, &out).unwrap().counts;
        let counts: Vec<_> = counts.iter().map(|count| (count.name.as_str(), count.of, count.form)).collect();
        assert_eq!(
            counts,
            [
                ("past_sequence_length", CountOf::Past, CountForm::Scalar),
                ("seen", CountOf::Past, CountForm::Rows),
                ("total_sequence_length", CountOf::Total, CountForm::Single),
            ]
        );
        inputs.push(count("current_sequence_length", DType::F32, vec![Dim::from(2usize)]));
        let names = RoleNames { past_key_values_length: Some("none".into()), ..RoleNames::default() };
        let config = DecoderConfig { names, ..DecoderConfig::default() };
        assert_eq!(
            bind_roles(&config, &inputs, &out).unwrap_err().0,
            [
                "past_key_values_length is mapped to 'none', which the graph does not have",
                "input 'current_sequence_length' counts tokens in [2]; one number or one for each row was expected",
                "input 'current_sequence_length' counts tokens in f32; i32 or i64 was expected",
                "no role covers the inputs seen",
            ]
        );
    }

    #[test]
    fn everything_that_does_not_fit_is_said() {
        let names = RoleNames {
            attention_mask: Some("mask".into()),
            past_names: Some("past_%d".into()),
            ..RoleNames::default()
        };
        let config = DecoderConfig { names, num_hidden_layers: Some(2), ..DecoderConfig::default() };
        let error = bind_roles(&config, &ports(&["ids", "past_0", "pixels"]), &outputs(&["logits"])).unwrap_err();
        assert_eq!(
            error.0,
            [
                "attention_mask is mapped to 'mask', which the graph does not have",
                "the graph does not have past_1",
                "the graph does not have present.0.key, present.0.value, present.1.key, present.1.value",
                "there is no input 'input_ids'",
                "no role covers the inputs ids, pixels",
            ]
        );
    }
}
