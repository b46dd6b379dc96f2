//! A configuration against the table of its keys. Every fault is found, not the first one only.

use std::collections::BTreeSet;

use super::flag;
use super::json::{Json, Member, Node, Place};
use super::keys::{
    CAPTURE_OPTIONS, DEVICE_ID, Key, Keys, Kind, OBJECTS, PROVIDER_OPTIONS, PROVIDER_OPTIONS_LATER, Status,
    is_known_provider_option,
};
use crate::suggestion::nearest_key;

/// What is wrong, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// Keys from the root to it.
    pub path: String,
    /// What is wrong.
    pub message: String,
}

/// What a name of a device means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedDevice {
    /// The canonical name of its kind.
    pub kind: String,
    /// Whether it is the CPU.
    pub is_host: bool,
}

/// The device that a name means, or why it means none. The one table of device names lives in a room above this one.
pub type DeviceOf<'a> = &'a dyn Fn(&str) -> Result<NamedDevice, String>;

/// What errors call a list and what is in it.
struct ListOf<'a> {
    list: &'a str,
    element: &'a str,
}

/// Checks one configuration.
pub struct Check<'a> {
    device_of: DeviceOf<'a>,
    /// What is wrong.
    pub faults: Vec<Fault>,
    /// Keys that were accepted and have no effect.
    pub without_effect: BTreeSet<String>,
}

impl<'a> Check<'a> {
    /// A check without findings.
    pub fn new(device_of: DeviceOf<'a>) -> Check<'a> {
        Check { device_of, faults: Vec::new(), without_effect: BTreeSet::new() }
    }

    /// Checks an object and all below it.
    pub fn object(&mut self, node: &Node, keys: &'static Keys, path: &str) {
        let Json::Object(members) = &node.value else {
            self.expected(node, path, "an object");
            return;
        };
        for (position, member) in members.iter().enumerate() {
            let path = joined(path, &member.key);
            if let Some(first) = members[..position].iter().find(|other| other.key == member.key) {
                self.duplicate(member, first, &path);
            }
            match keys.keys.iter().find(|key| key.name == member.key) {
                Some(key) => self.key(member, key, &path),
                None if keys.prefixes.iter().any(|prefix| member.key.starts_with(prefix)) => {
                    self.is_text(&member.node, &path);
                    self.without_effect.insert(path);
                }
                None => self.unknown(member, keys, &path),
            }
        }
    }

    /// Checks a value against its key.
    pub fn key(&mut self, member: &Member, key: &'static Key, path: &str) {
        match key.status {
            Status::Honour => self.kind(&member.node, &key.kind, path),
            Status::Accept => {
                self.kind(&member.node, &key.kind, path);
                self.without_effect.insert(path.to_string());
            }
            Status::Later => self.fault(member.place, path, "is known but not supported yet"),
            Status::Reject(reason) => self.fault(member.place, path, format!("is not supported: {reason}")),
        }
    }

    fn kind(&mut self, node: &Node, kind: &Kind, path: &str) {
        match *kind {
            Kind::Bool => {
                if node.as_bool().is_none() {
                    self.expected(node, path, "true or false");
                }
            }
            Kind::Integer(lo, hi) => match node.as_integer() {
                None => self.expected(node, path, "an integer"),
                Some(value) if value < lo || value > hi => {
                    self.fault(node.place, path, format!("is {value}; {} was expected", integers(lo, hi)));
                }
                Some(_) => {}
            },
            Kind::Number(lo, hi) => self.number(node, path, lo..=hi, false),
            Kind::NumberAbove(lo, hi) => self.number(node, path, lo..=hi, true),
            Kind::Text | Kind::Path => self.is_text(node, path),
            Kind::Word(words) => match node.as_text() {
                Some(word) if words.contains(&word) => {}
                _ => self.expected(node, path, &format!("one of {}", words.join(", "))),
            },
            Kind::IntegerOrList => {
                if node.as_integer().is_none() {
                    let expected = ListOf { list: "an integer or a list of integers", element: "an integer" };
                    self.list(node, path, &expected, |node| node.as_integer().is_some());
                }
            }
            Kind::Integers(lo, hi) => {
                let expected = ListOf { list: "a list of integers", element: &integers(lo, hi) };
                let fits = |node: &Node| node.as_integer().is_some_and(|value| (lo..=hi).contains(&value));
                self.list(node, path, &expected, fits);
            }
            Kind::Object(keys) => self.object(node, keys, path),
            Kind::Providers => self.providers(node, path),
            Kind::Zero(reason) => match node.as_float() {
                None => self.expected(node, path, "a number"),
                Some(0.0) => {}
                Some(_) => self.fault(node.place, path, format!("must be 0: {reason}")),
            },
            Kind::AllOf(word) => {
                let expected = ListOf { list: "a list of strings", element: "a string" };
                self.list(node, path, &expected, |node| node.as_text().is_some());
                let other = node.elements().iter().filter_map(Node::as_text).find(|found| *found != word);
                if let Some(other) = other {
                    self.fault(node.place, path, format!("has '{other}'; only '{word}' is supported yet"));
                }
            }
            Kind::Any => {}
        }
    }

    fn number(&mut self, node: &Node, path: &str, range: std::ops::RangeInclusive<f64>, is_open: bool) {
        match node.as_float() {
            None => self.expected(node, path, "a number"),
            Some(value) if !range.contains(&value) || (is_open && value == *range.start()) => {
                let (lo, hi) = (range.start(), range.end());
                let low = if is_open { format!("more than {lo}") } else { format!("{lo} or more") };
                let expected = if *hi == f64::MAX { low } else { format!("{low} and at most {hi}") };
                self.fault(node.place, path, format!("is {value}; {expected} was expected"));
            }
            Some(_) => {}
        }
    }

    fn is_text(&mut self, node: &Node, path: &str) {
        if node.as_text().is_none() {
            self.expected(node, path, "a string");
        }
    }

    fn list(&mut self, node: &Node, path: &str, expected: &ListOf<'_>, fits: impl Fn(&Node) -> bool) {
        match &node.value {
            Json::List(elements) => {
                for (position, element) in elements.iter().enumerate().filter(|(_, element)| !fits(element)) {
                    let path = format!("{path}[{position}]");
                    self.expected(element, &path, expected.element);
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_) | Json::Object(_) => {
                self.expected(node, path, expected.list);
            }
        }
    }

    /// `[{device: {option: value}}]`.
    fn providers(&mut self, node: &Node, path: &str) {
        if !matches!(node.value, Json::List(_)) {
            self.expected(node, path, "a list of objects");
        }
        for (position, entry) in node.elements().iter().enumerate() {
            let path = format!("{path}[{position}]");
            let [member] = entry.members() else {
                self.expected(entry, &path, "an object of one device's name");
                continue;
            };
            let path = joined(&path, &member.key);
            match (self.device_of)(&member.key) {
                Ok(device) => self.provider_options(&member.node, &device.kind, &path),
                Err(reason) => self.fault(member.place, &path, reason),
            }
        }
    }

    fn provider_options(&mut self, node: &Node, kind: &str, path: &str) {
        if !matches!(node.value, Json::Object(_)) {
            self.expected(node, path, "an object of options");
        }
        for (position, option) in node.members().iter().enumerate() {
            let path = joined(path, &option.key);
            let name = option.key.as_str();
            if let Some(first) = node.members()[..position].iter().find(|other| other.key == option.key) {
                self.duplicate(option, first, &path);
            }
            if PROVIDER_OPTIONS_LATER.contains(&name) {
                self.fault(option.place, &path, "is known but not supported yet");
                continue;
            }
            self.is_text(&option.node, &path);
            if PROVIDER_OPTIONS.contains(&name) {
                self.provider_option(option, node.members(), &path);
                continue;
            }
            if is_known_provider_option(kind, name) {
                self.without_effect.insert(path);
                continue;
            }
            let near = nearest_key(name, PROVIDER_OPTIONS.iter().copied());
            let hint = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
            self.fault(option.place, &path, format!("is no option of {kind} devices{hint}"));
        }
    }

    /// An option that is honoured: a number of a device, or a flag that does not contradict the same one of another name.
    fn provider_option(&mut self, option: &Member, all: &[Member], path: &str) {
        let Some(text) = option.node.as_text() else { return };
        if option.key == DEVICE_ID {
            if text.parse::<u32>().is_err() {
                self.expected(&option.node, path, "the number of a device");
            }
            return;
        }
        let Some(value) = flag(text) else {
            self.expected(&option.node, path, "'0' or '1'");
            return;
        };
        let is_other = |other: &&Member| CAPTURE_OPTIONS.contains(&other.key.as_str()) && other.key != option.key;
        for other in all.iter().filter(is_other) {
            let contradicts = other.node.as_text().and_then(flag).is_some_and(|other| other != value);
            // Told once, of the one that is on.
            if contradicts && value {
                self.fault(option.place, path, format!("and {} contradict one another", other.key));
            }
        }
    }

    fn unknown(&mut self, member: &Member, keys: &'static Keys, path: &str) {
        let is_of_use = |key: &&Key| matches!(key.status, Status::Honour | Status::Accept);
        let near = nearest_key(&member.key, keys.keys.iter().filter(is_of_use).map(|key| key.name));
        let near = near.map_or(String::new(), |near| format!("; did you mean '{near}'?"));
        let has_key = |keys: &&&Keys| keys.keys.iter().any(|key| key.name == member.key);
        let elsewhere: Vec<&str> = OBJECTS.iter().filter(has_key).map(|keys| keys.name).collect();
        let elsewhere = match elsewhere.is_empty() {
            true => String::new(),
            false => format!("; there is such a key in {}", elsewhere.join(" and ")),
        };
        self.fault(member.place, path, format!("is not a key of {}{near}{elsewhere}", keys.name));
    }

    fn duplicate(&mut self, member: &Member, first: &Member, path: &str) {
        let message = match member.place.source == first.place.source {
            true => "is written twice in one object",
            false => "is written twice",
        };
        self.fault(member.place, path, message);
    }

    fn expected(&mut self, node: &Node, path: &str, expected: &str) {
        let found = match &node.value {
            Json::Number(number) => number.to_string(),
            Json::Text(text) => format!("'{text}'"),
            Json::Bool(value) => value.to_string(),
            Json::Null | Json::List(_) | Json::Object(_) => node.value.kind().to_string(),
        };
        self.fault(node.place, path, format!("is {found}; {expected} was expected"));
    }

    /// The device that a name means.
    pub fn device(&self, name: &str) -> Option<NamedDevice> {
        (self.device_of)(name).ok()
    }

    /// Notes a fault.
    pub fn fault(&mut self, place: Place, path: &str, message: impl Into<String>) {
        let path = if path.is_empty() { "the root".to_string() } else { path.to_string() };
        self.faults.push(Fault { place, path, message: message.into() });
    }
}

fn joined(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_string() } else { format!("{path}.{key}") }
}

fn integers(lo: i64, hi: i64) -> String {
    match (lo, hi) {
        (lo, hi) if hi >= i64::from(i32::MAX) => format!("{lo} or more"),
        (lo, hi) => format!("{lo} to {hi}"),
    }
}
