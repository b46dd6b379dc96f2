//! What passes did and what they left alone: every rewrite says where it fired, and of a candidate that it refused the
//! reason, as one static word (specs/compiler.md §3). `precast compile --explain` prints it.

use precast_ir::Node;
use precast_ir::graph::Provenance;

/// Why a candidate was left alone: one word, the same for every node that it befalls.
pub type Reason = &'static str;

/// What one pass notes while it runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    fired: Vec<Place>,
    refused: Vec<(Place, Reason)>,
}

/// A node that a pass looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Name of its op.
    pub op: &'static str,
    /// The source nodes it stands for.
    pub names: Provenance,
}

impl Log {
    /// The pass replaced this node.
    pub fn fired(&mut self, node: &Node) {
        self.fired.push(Place::of(node));
    }

    /// The pass would have replaced this node but for the reason.
    pub fn refused(&mut self, node: &Node, reason: Reason) {
        self.refused.push((Place::of(node), reason));
    }
}

impl Place {
    fn of(node: &Node) -> Place {
        Place { op: node.op.name(), names: node.provenance.clone() }
    }
}

/// What one pass of a list did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PassReport {
    /// Its name.
    pub pass: &'static str,
    /// Whether an option kept it from running.
    pub is_skipped: bool,
    /// Nodes that it replaced.
    pub fired: Vec<Place>,
    /// Candidates that it left alone, by reason in order of first mention.
    pub refused: Vec<(Reason, Vec<Place>)>,
}

impl PassReport {
    pub(crate) fn skipped(pass: &'static str) -> PassReport {
        PassReport { pass, is_skipped: true, fired: Vec::new(), refused: Vec::new() }
    }

    pub(crate) fn of(pass: &'static str, log: Log) -> PassReport {
        let mut refused: Vec<(Reason, Vec<Place>)> = Vec::new();
        for (place, reason) in log.refused {
            match refused.iter_mut().find(|(seen, _)| *seen == reason) {
                Some((_, places)) => places.push(place),
                None => refused.push((reason, vec![place])),
            }
        }
        PassReport { pass, is_skipped: false, fired: log.fired, refused }
    }
}
